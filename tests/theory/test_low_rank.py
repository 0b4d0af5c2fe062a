import tracemalloc

import numpy as np
import pytest
import scipy.stats

from linattn_ref.attention import softmax
from linattn_ref.theory import dimension_growth, low_rank
from linattn_ref.theory.johnson_lindenstrauss import (
    count_failures,
    failure_bound,
    gaussian_projection,
    inner_product_failure,
)


def attention(n, rng, width=8, dtype=np.float64):
    q, k = rng.standard_normal((2, n, width)).astype(dtype)
    return q, k, softmax.matrix(q, k)


@pytest.mark.parametrize("tile", [1, 7, 30, 64])
def test_tiles_are_the_dense_matrix(tile):
    q, k, p = attention(30, np.random.default_rng(0))
    tiles = list(low_rank.attention_rows(q, k, tile=tile))
    assert max(len(each) for each in tiles) <= tile
    np.testing.assert_allclose(np.concatenate(tiles), p, atol=1e-15)  # another order of sums


def test_no_square_array_is_made():
    n = 2048
    tracemalloc.start()
    try:
        dimension_growth.random_action(n, trials=4, rng=np.random.default_rng(12), tile=32)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < n * n * 4 / 4  # a quarter of P in float32; what is needed is about a tenth


def test_errors_are_the_formulas():
    rng = np.random.default_rng(1)
    q, k, p = attention(24, rng)
    v = rng.standard_normal(24)
    got = low_rank.projection_errors(
        low_rank.attention_rows(q, k, tile=5), v, 6, trials=3, rng=np.random.default_rng(2)
    )
    draws = np.random.default_rng(2)
    for trial in range(3):
        r = gaussian_projection(6, 24, draws)
        low = p @ r.T @ r
        assert np.linalg.matrix_rank(low) == 6
        error = low @ v - p @ v
        expected = low_rank.Errors(
            vector=np.linalg.norm(error) / np.linalg.norm(p @ v),
            entry=max(abs(error[i] / (p[i] @ v)) for i in range(24)),
            entry_by_norms=max(abs(error[i]) / (np.linalg.norm(p[i]) * np.linalg.norm(v)) for i in range(24)),
            vector_by_norms=np.linalg.norm(error) / (np.linalg.norm(p) * np.linalg.norm(v)),
        )
        np.testing.assert_allclose([each[trial] for each in got], expected, rtol=1e-10)


@pytest.mark.parametrize("size", [2.0**-83, 2.0**66])
def test_errors_do_not_depend_on_the_size_of_the_values(size):
    """Whose squares leave the range of float32."""
    rng = np.random.default_rng(1)
    p, v = rng.random((6, 8)).astype(np.float32), rng.standard_normal(8).astype(np.float32)

    def errors(v):
        acted = low_rank.action([p], v, trials=2, rng=np.random.default_rng(3))
        literal = low_rank.projection_errors([p], v, 4, trials=2, rng=np.random.default_rng(2))
        return [*literal, *(low_rank.errors_at(acted, 4, event) for event in low_rank.Errors._fields)]

    np.testing.assert_array_equal(errors(np.float32(size) * v), errors(v))


@pytest.mark.parametrize("event", low_rank.Errors._fields)
def test_one_pass_has_the_distribution_of_the_projection(event):
    """Equation (5) against drawn matrices R: two-sample Kolmogorov-Smirnov."""
    rng = np.random.default_rng(3)
    _, _, p = attention(20, rng)
    v = 0.5 + rng.standard_normal(20)
    acted = low_rank.action([p], v, trials=3000, rng=rng)
    for k in (2, 15):
        drawn = low_rank.projection_errors([p], v, k, trials=3000, rng=rng)
        test = scipy.stats.ks_2samp(getattr(drawn, event), low_rank.errors_at(acted, k, event))
        assert test.pvalue > 1e-4


def test_mean_square_error_is_the_formula():
    rng = np.random.default_rng(4)
    _, _, p = attention(40, rng)
    v = 0.3 + rng.standard_normal(40)
    acted = low_rank.action([p], v, trials=4000, rng=rng)
    expected = (1 + low_rank.amplification(acted) ** 2) / 10  # (6) over |P v|^2
    squares = low_rank.errors_at(acted, 10, "vector") ** 2
    assert abs(squares.mean() - expected) < 5 * squares.std() / np.sqrt(4000)  # 5 standard errors
    exact = np.linalg.norm(p) * np.linalg.norm(v) / np.linalg.norm(p @ v)
    assert low_rank.amplification(acted) == pytest.approx(exact)


def test_a_single_row_fails_as_often_as_two_vectors_do():
    rng = np.random.default_rng(5)
    p, v = rng.dirichlet(np.ones(15))[None], 0.2 + rng.standard_normal(15)
    acted = low_rank.action([p], v, trials=4000, rng=rng)
    exact = inner_product_failure(1 / low_rank.amplification(acted), 0.4, 12)
    errors = low_rank.errors_at(acted, 12, "entry_by_norms")
    found = count_failures(errors, 0.4, low_rank.stated_failure(1, 0.4, 12), confidence=1 - 1e-4)
    assert found.low <= exact <= found.high
    np.testing.assert_allclose(errors, low_rank.errors_at(acted, 12, "vector_by_norms"), rtol=1e-12)


def test_the_theorem_as_printed_fails_for_values_of_mean_zero_and_holds_by_the_norms():
    rng = np.random.default_rng(6)
    acted = dimension_growth.random_action(1024, trials=100, rng=rng, value_mean=0.0)
    k = low_rank.stated_dimension(1024, 0.5)
    assert k < 1024
    assert (low_rank.errors_at(acted, k, "vector") > 0.5).all()
    for event in ("entry_by_norms", "vector_by_norms"):
        assert (low_rank.errors_at(acted, k, event) <= 0.5).all()
    assert acted.exact.dtype == acted.noise.dtype == np.float32


def test_markov_bounds_of_the_docstring():
    rng = np.random.default_rng(7)
    _, _, p = attention(60, rng)
    for mean in (0.0, 1.0):
        acted = low_rank.action([p], mean + rng.standard_normal(60), trials=2000, rng=rng)
        for k in (8, 64, 512):
            printed = np.mean(low_rank.errors_at(acted, k, "vector") > 0.5)
            by_norms = np.mean(low_rank.errors_at(acted, k, "vector_by_norms") > 0.5)
            assert printed <= (1 + low_rank.amplification(acted) ** 2) / (k * 0.25)
            assert by_norms <= 2 / (k * 0.25)


def test_stated():
    assert low_rank.stated_dimension(512, 0.5) == int(np.ceil(5 * np.log(512) / 0.125))
    # (3) at the theorem's k: 2 n^(-1/4), up to the rounding up of k.
    k = low_rank.stated_dimension(10**6, 0.5)
    assert low_rank.stated_failure(10**6, 0.5, k) == pytest.approx(2 * (10**6) ** -0.25, rel=0.125 / 4)
    assert low_rank.stated_failure(10**6, 0.5, k) == pytest.approx(10**6 * failure_bound(0.5, k))
    assert low_rank.stated_failure(512, 0.5, 1) == 1.0
    for eps, n in ((0.5, 215), (0.1, 4698)):  # the docstring's first useful lengths
        assert low_rank.stated_dimension(n, eps) <= n
        assert low_rank.stated_dimension(n - 1, eps) > n - 1


def test_exact_zeros():
    """A row that sees nothing is right; an entry that is exactly 0 is missed by infinitely much, relative to itself."""
    p, v = np.array([[0.0, 0.0], [0.5, 0.5]]), np.array([1.0, -1.0])
    errors = low_rank.projection_errors([p], v, 3, trials=4, rng=np.random.default_rng(8))
    assert np.isinf(errors.entry).all()
    assert np.isinf(errors.vector).all()
    assert np.isfinite(errors.entry_by_norms).all()
    assert (errors.entry_by_norms > 0).all()


def test_needed_dimension_is_where_the_rate_crosses():
    acted = dimension_growth.random_action(128, trials=200, rng=np.random.default_rng(9))
    for event in ("entry_by_norms", "vector"):
        got = dimension_growth.needed_dimension(acted, 0.5, event, failure=0.1)
        assert np.mean(low_rank.errors_at(acted, got.measured, event) > 0.5) <= 0.1
        assert np.mean(low_rank.errors_at(acted, got.measured - 1, event) > 0.5) > 0.1
        assert got.low <= got.measured <= got.high
        assert got.stated == low_rank.stated_dimension(128, 0.5)


def test_growth_entries_need_a_logarithm_and_the_vector_a_constant():
    rng = np.random.default_rng(10)
    lengths = (64, 256, 1024)
    acted = {n: dimension_growth.random_action(n, trials=200, rng=rng) for n in lengths}
    flat = {n: dimension_growth.random_action(n, trials=200, rng=rng, value_mean=0.0) for n in lengths}
    entries = dimension_growth.growth(acted, 0.5, "entry_by_norms")
    assert entries.lengths == lengths
    # 2 / eps^2 = 8 for independent rows, less for correlated ones; steeper than 40 would contradict the theorem.
    assert 3 < entries.measured_slope < 12 < entries.stated_slope == pytest.approx(40)
    assert abs(dimension_growth.growth(acted, 0.5, "vector_by_norms").measured_slope) < 2
    as_printed = dimension_growth.growth(flat, 0.5, "vector")
    for each, n in zip(as_printed.needed, lengths, strict=True):
        assert each.measured > n
        # By (6) the mean square of the relative error is (1 + a^2) / k. It is a sum of squares of normal numbers, whose
        # 90% point lies between 1 (very many of them) and 2.71 (a single one) times the mean; 200 trials blur that.
        assert 1 < each.measured * 0.25 / (1 + low_rank.amplification(flat[n]) ** 2) < 3


def action_of_three():
    return low_rank.action([np.eye(3)], np.ones(3), trials=200, rng=np.random.default_rng())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: low_rank.stated_dimension(0, 0.5), ValueError, "n: expected an integer of at least 1"),
        (lambda: low_rank.stated_failure(-5, 0.1, 3), ValueError, "n: expected an integer of at least 1, got -5"),
        (
            lambda: [*low_rank.attention_rows(np.eye(3), np.ones(3))],
            ValueError,
            "k: expected one head, an array of two",
        ),
        (
            lambda: [*low_rank.attention_rows(*np.ones((2, 2, 3, 3)))],
            ValueError,
            "q: expected one head, an array of two axes",
        ),
        (lambda: low_rank.stated_dimension(9, 1.5), ValueError, "eps: expected 0 < eps < 1"),
        (lambda: low_rank.action([np.eye(3)], np.zeros(3), trials=1, rng=None), ValueError, "v: expected a finite vec"),
        (lambda: low_rank.action([np.eye(3)], np.ones(3), trials=0, rng=None), ValueError, "trials: expected"),
        (
            lambda: low_rank.action([np.eye(3)], np.ones(4), trials=1, rng=np.random.default_rng()),
            ValueError,
            r"rows: expected tiles \(tile, n\) with n = 4",
        ),
        (lambda: low_rank.action(iter([]), np.ones(3), trials=1, rng=np.random.default_rng()), ValueError, "got none"),
        (
            lambda: low_rank.action([np.eye(3, dtype="f")], np.ones(3), trials=1, rng=np.random.default_rng()),
            TypeError,
            "rows: expected float64 like the other arrays",
        ),
        (lambda: low_rank.errors_at(action_of_three(), 2, "norm"), ValueError, "event: expected one of vector, entry"),
        (lambda: list(low_rank.attention_rows(np.eye(3), np.eye(3), tile=0)), ValueError, "tile: expected an integer"),
        (
            lambda: dimension_growth.needed_dimension(action_of_three(), 0.5, "vector", failure=0.01),
            ValueError,
            "failure: 200 trials cannot tell 0.01 from 0",
        ),
        (
            lambda: dimension_growth.growth({3: action_of_three()}, 0.5, "vector"),
            ValueError,
            "actions: expected at least two lengths",
        ),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_no_dimension_helps_where_the_exact_answer_is_zero():
    acted = low_rank.action([np.full((1, 2), 0.5)], np.array([1.0, -1.0]), trials=100, rng=np.random.default_rng(11))
    with pytest.raises(ValueError, match="fails too often at every k"):
        dimension_growth.needed_dimension(acted, 0.5, "vector")
