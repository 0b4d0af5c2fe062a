"""The figure of the causal product's cost: four forms of one function, and its formulas are what is counted."""

import numpy as np
import pytest

from linattn_ref import gradcheck
from linattn_ref.experiments.publishing import style
from linattn_ref.experiments.recurrence import causal_cost

C, M = 64, 48


@pytest.fixture(scope="module", params=[np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def results(request):
    rng = np.random.default_rng(0)
    return causal_cost.compute((128, 192), rng=rng, feature_width=C, value_width=M, dtype=request.param)


def draw(n):
    rng = np.random.default_rng(1)
    return [rng.standard_normal((n, width)) for width in (C, C, M, M)]


@pytest.mark.parametrize("form", causal_cost.FORMS)
@pytest.mark.parametrize("n", [1, 2, 65])
def test_all_forms_are_one_function(form, n):
    *inputs, d_out = draw(n)
    results = []
    for forward, backward in (causal_cost.FORMS["masked"], causal_cost.FORMS[form]):
        out, saved = forward(*inputs)
        results.append((out, *backward(d_out, saved)))
    for expected, actual in zip(*results, strict=True):
        # Sums of n C or n M products of size 1, each in another order.
        np.testing.assert_allclose(actual, expected, rtol=0, atol=n * C * np.finfo(np.float64).eps)


def test_the_masked_form_is_right():
    *inputs, _ = draw(5)
    out, _ = causal_cost.masked_forward(*inputs)
    q, k, v = inputs
    by_loops = [sum((q[i] @ k[j]) * v[j] for j in range(i + 1)) for i in range(5)]
    np.testing.assert_allclose(out, by_loops, rtol=1e-13, atol=1e-13)
    gradcheck.check_elementwise(
        causal_cost.masked_forward, causal_cost.masked_backward, *inputs, rng=np.random.default_rng(2)
    ).assert_ok()


@pytest.mark.parametrize("form", causal_cost.FORMS)
def test_what_is_counted_is_what_the_formulas_say(results, form):
    costs = getattr(results, form)
    np.testing.assert_array_equal(costs.kept, costs.kept_formula)
    np.testing.assert_array_equal(costs.multiply_adds, costs.multiply_adds_formula)


@pytest.mark.parametrize("form", causal_cost.FORMS)
def test_the_peak_is_about_what_the_formula_says(results, form):
    costs = getattr(results, form)
    # Python's objects and small arrays come on top.
    np.testing.assert_allclose(costs.peak, costs.peak_formula, rtol=0.03)


def test_the_figure_shows_the_results(results):
    with style.use():
        figure = causal_cost.draw(results)
    assert [axis.get_ylabel() for axis in figure.axes] == ["multiply-adds (millions)", "most in use at once (MiB)"]
    np.testing.assert_array_equal(figure.axes[1].lines[2].get_ydata(), results.naive.peak / 2**20)
