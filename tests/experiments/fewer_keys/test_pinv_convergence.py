"""How many iterations the pseudo-inverse needs: the recursion, and the figure on random heads and a tiny model."""

from pathlib import Path

import numpy as np
import pytest
from quick import drawn, quick

from linattn_ref.attention import nystromformer
from linattn_ref.attention.parts import pinv_iterative
from linattn_ref.experiments.fewer_keys import pinv_convergence as figure
from linattn_ref.experiments.measuring import heads as heads_module

FIGURES = Path(__file__).parents[3] / "figures"


@pytest.fixture(scope="module")
def results():
    return quick("pinv_convergence")


def test_drawing(results):
    left, middle, right = drawn("pinv_convergence").axes
    assert len(left.lines) == 3 * len(results.conditions) + 3  # and the legend's
    assert len(right.texts) == results.real.shape[1] + 1
    assert len(middle.lines) == len(results.filtered_iterations) + 1
    assert len(right.lines) == results.real.shape[1] + 1


def test_measured_is_predicted(results):
    """The smallest singular value is the last, and its recursion is the error; to rounding, times the condition."""
    np.testing.assert_allclose(results.measured, results.predicted, rtol=0, atol=1e-12)


def test_the_recursion_is_that_of_the_iteration():
    """For a 1 x 1 matrix, and any start: A = 1, Z = t."""
    for t in (0.01, 0.3, 0.9):
        a = np.diag([1.0, np.sqrt(t)])  # largest sums 1: t_0 of the second value is t
        last, saved = pinv_iterative.forward(a, iterations=4)
        shares = [np.sqrt(t) * z[1, 1] for z in (*saved.iterates, last)]
        np.testing.assert_allclose(figure.inverted_share(t, 4), shares, rtol=1e-13)


def test_what_is_left_in_powers():
    """1 - t goes to three quarters of its third power and a quarter of its fourth; Newton and Schulz: its fourth."""
    e = 1 - figure.inverted_share(0.2, 5)
    np.testing.assert_allclose(e[1:], (3 * e[:-1] ** 3 + e[:-1] ** 4) / 4, rtol=0, atol=1e-15)
    newton = figure.newton_error(0.2, 3)
    z = np.array([[0.2]])
    for step in range(6):
        assert step % 2 or abs(1 - z.item() - newton[step // 2]) < 1e-15
        z = z @ (2 - z)


def test_reach():
    for iterations in (2, 6, 10):
        start = figure.reach(iterations) ** -2.0
        np.testing.assert_allclose(figure.inverted_share(start, iterations)[-1], 0.5, rtol=1e-9)
    assert 30 < figure.reach(6) < 50
    assert figure.reach(0) == pytest.approx(np.sqrt(2))  # t_0 itself: it was 1


def test_prescribed_condition():
    values = np.linalg.svd(figure.with_condition(6, 1e5, np.random.default_rng(0)), compute_uv=False)
    np.testing.assert_allclose(values, np.geomspace(1, 1e-5, 6), rtol=1e-9)


def test_condition_of_real_landmarks():
    heads = heads_module.random_heads(np.random.default_rng(0), sentences=1, layers=1, heads=1, length=20, width=4)
    q, k, v, _ = heads.sentence(0)
    _, saved = nystromformer.forward(*(x[0, 0].astype(np.float64) for x in (q, k, v)), landmarks=5)
    np.testing.assert_allclose(figure.condition_by_layer(heads, 5), [np.linalg.cond(saved.inverse.a)], rtol=1e-6)


def test_the_whole_figure_from_a_model_and_a_text(tiny_model, tiny_text):
    got = figure.compute(
        heads=heads_module.Source(2, 20, 1, tiny_model, tiny_text), landmarks=(4, 40), conditions=(3.0,), size=4
    )
    assert got.landmarks == (4,)
    assert got.real.shape == (1, 2)
    assert {"model": "tiny", "sentences": 2}.items() <= got.settings.items()
