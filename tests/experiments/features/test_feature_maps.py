"""The figure of feature maps: errors below their bound, counts that the formulas give, the crossover between them."""

import math

import numpy as np
import pytest
from quick import drawn, quick

from linattn_ref.attention import feature_maps
from linattn_ref.experiments.features import feature_maps as figure_module


@pytest.fixture(scope="module")
def results():
    return quick("feature_maps")


def test_pairs_have_the_scores_asked_for():
    scores = np.array([-3.0, 0.0, 0.5, 8.0])
    x, y = figure_module.pairs_with_scores(scores, np.random.default_rng(1), width=5)
    assert x.shape == y.shape == (4, 5)
    np.testing.assert_allclose((x * y).sum(axis=-1), scores, rtol=0, atol=1e-14)  # some roundings of numbers up to 8
    across = y - x * scores[:, None]
    assert (np.linalg.norm(across, axis=-1) > 0.1).all()


def test_errors_lie_between_the_first_term_left_out_and_the_remainder(results):
    # Rounding: products of features sum to at most exp(|x| |y|) in absolute value, and |x| |y| < 9 for these pairs
    rounding = 1e-14 * math.exp(9)
    for order, errors in zip(results.orders, results.errors, strict=True):
        t, absolute = results.scores, errors * np.exp(results.scores)
        assert (absolute <= figure_module.remainder_bound(t, order) + rounding).all()
        first = t ** (order + 1) / math.factorial(order + 1)  # for t > 0 all later terms are positive too
        assert (absolute[t > 0] >= first[t > 0] - rounding).all()
        assert (errors[t > 0] < 1).all()  # a part of a sum of positive terms
    # The lower the score the worse: at -8 even order 8 has lost the value, at 8 it has more than half of it.
    assert (results.errors[:, 0] > 1e4).all()
    assert results.errors[-1, -1] < 0.5


def test_remainder_bound_at_a_known_point():
    # |t|^3 / 3! = 8 / 6, times exp(2) for t = 2 and 1 for t = -2
    np.testing.assert_allclose(
        figure_module.remainder_bound(np.array([2.0, -2.0, 0.0]), 2), [8 / 6 * math.exp(2), 8 / 6, 0], rtol=1e-15
    )


def test_counts_are_the_formulas(results):
    n, d = results.lengths, results.width
    np.testing.assert_array_equal(results.softmax, 2 * n**2 * d)
    for phi in figure_module.MAPS:
        np.testing.assert_array_equal(results.linear[phi.name], n * phi.width(d) * (2 * d + 1))


@pytest.mark.parametrize(("key_width", "value_width"), [(4, 4), (3, 8), (6, 1)])
@pytest.mark.parametrize("phi", figure_module.MAPS, ids=lambda phi: phi.name)
def test_crossover_is_the_first_length_above_the_formula(phi, key_width, value_width):
    formula = figure_module.crossover_formula(phi.width(key_width), key_width, value_width)
    assert figure_module.crossover(phi, key_width, value_width) == math.floor(formula) + 1


def test_crossover_of_quadratic_is_half_of_that_of_all_products(results):
    # D = M: about C, which is 1 + D + D(D+1)/2 for the monomials and 1 + D + D^2 for all products
    quadratic, products = (results.crossovers[name][-1] for name in ("quadratic(1)", "taylor_exp(2)"))
    d = int(results.widths[-1])
    assert d**2 < products < 1.4 * d**2
    assert d**2 / 2 < quadratic < d**2
    assert results.crossovers["elu_plus_one"][-1] == d + 1


def test_results_depend_on_the_seed_only_in_rounding(results):
    other = quick("feature_maps", seed=1)
    assert (other.errors != results.errors).any()
    np.testing.assert_allclose(other.errors, results.errors, rtol=1e-6, atol=1e-14 * math.exp(17))
    np.testing.assert_array_equal(other.softmax, results.softmax)


def test_drawing(results):
    left, middle, right = drawn("feature_maps").axes
    np.testing.assert_array_equal(left.lines[0].get_ydata(), results.errors[0])
    np.testing.assert_array_equal(middle.lines[0].get_ydata(), results.softmax)
    np.testing.assert_array_equal(right.lines[0].get_ydata(), results.crossovers[feature_maps.elu_plus_one.name])
