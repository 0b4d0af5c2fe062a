"""Time and memory of a step of training: what is run for the figure, and what it shows. No time is tested."""

import numpy as np
import pytest
from quick import assert_comes_back, assert_drawn_as_it_comes_back, quick

from linattn_ref.experiments.cost import model_resources
from linattn_ref.experiments.measuring.points import Points
from linattn_ref.experiments.publishing import style


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"lengths": (256, 128)}, "lengths: expected positive ascending ones"),
        ({"lengths": (2**13, 2**14)}, "two of them up to 8192"),
        ({"lengths": (0, 128)}, "lengths: expected positive ascending ones"),
        ({"rounds": 0}, "rounds: expected at least 1, got 0"),
    ],
)
def test_bad_arguments_are_told(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        model_resources.compute(**options)


@pytest.fixture(scope="module")
def results():
    """Made-up measurements: softmax attention quadratic in time, all else linear."""
    found = Points({}, {})
    for n in model_resources.LENGTHS:
        names = [name for name in model_resources.LOOK if n <= model_resources.LONGEST.get(name, n)]
        found.seconds[str(n)] = {name: np.full(3, 1e-6 * n ** (2 if name == "softmax" else 1)) for name in names}
        found.memory[str(n)] = {name: np.array([3000 * n]) for name in names}
    return model_resources.summarise(found, 3)


def test_exponents_are_those_of_the_curves(results):
    for name, curve in results.curves.items():
        assert curve.time_growth.exponent == pytest.approx(2 if name == "softmax" else 1)
        assert curve.memory_growth.exponent == pytest.approx(1)
    assert results.curves["softmax"].lengths[-1] == model_resources.LONGEST["softmax"]


def test_the_figure_has_a_name_a_line(results):
    with style.use():
        figure = model_resources.draw(results)
    for axes in figure.axes:
        told = [text.get_text() for text in axes.texts]
        assert [one.split()[0] for one in told] == list(model_resources.LOOK)


@pytest.mark.slow
def test_it_measures_every_mechanism():
    found = quick("model_resources")
    assert_comes_back("model_resources", found)
    assert_drawn_as_it_comes_back("model_resources", found)
    curves = found.curves
    assert set(curves) == set(model_resources.LOOK)
    for curve in curves.values():
        assert min(curve.seconds) > 0
        assert curve.peak[1] > 1.5 * curve.peak[0]  # twice as long


@pytest.mark.slow
@pytest.mark.parametrize("name", model_resources.LOOK)
def test_a_step_learns(name):
    """The parameters move: it is a whole step, and the loss of the same tokens falls."""
    step = model_resources.step_of(name, 64, 0)
    losses = [step() for _ in range(8)]
    assert losses[-1] < losses[0]
