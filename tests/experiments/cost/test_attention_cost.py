"""The figure of softmax attention's cost: its formulas are what is counted."""

import matplotlib
import numpy as np
import pytest

from linattn_ref.experiments.cost import attention_cost
from linattn_ref.experiments.publishing import style


@pytest.fixture(scope="module", params=[np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def results(request):
    return attention_cost.compute((128, 200, 512), rng=np.random.default_rng(0), value_width=48, dtype=request.param)


@pytest.mark.parametrize("form", ["dense", "online"])
def test_what_is_counted_is_what_the_formulas_say(results, form):
    costs = getattr(results, form)
    np.testing.assert_array_equal(costs.multiply_adds, costs.multiply_adds_formula)
    np.testing.assert_array_equal(costs.kept, costs.kept_formula)


@pytest.mark.parametrize("form", ["dense", "online"])
def test_the_peak_is_about_what_the_formula_says(results, form):
    costs = getattr(results, form)
    # Small arrays (row sums, masks) and Python's objects come on top, and NumPy may reuse a temporary array or not.
    # NumPy 2.0 keeps a buffer of 8192 numbers beside that, in float32. The online form's formula is for several tiles.
    long = slice(-1 if form == "online" else None, None)
    np.testing.assert_allclose(costs.peak[long], costs.peak_formula[long], rtol=0.1, atol=4 * np.getbufsize())


def test_the_figure_shows_the_results(results):
    with style.use("paper"):
        figure = attention_cost.draw(results)
    assert [axis.get_title(loc="left") for axis in figure.axes] == [
        "multiply-adds",
        "kept for backward (KiB)",
        "most in use (KiB)",
    ]
    points = figure.axes[1].lines[0]
    assert isinstance(points, matplotlib.lines.Line2D)
    np.testing.assert_array_equal(points.get_ydata(), results.dense.kept / 1024)
