import math

import numpy as np
import pytest

from linattn_ref.attention import linformer, softmax
from linattn_ref.theory import linear_self_attention as theorem2


def inputs(n=64, width=8, mean=0.0, seed=0, dtype=np.float64):
    q, k, v = np.random.default_rng(seed).standard_normal((3, n, width)).astype(dtype)
    return q, k, dtype(mean) + v


def test_stated_dimension():
    assert theorem2.stated_dimension(512, 64, 0.5) == math.ceil(5 * math.log(512) / 0.25)
    assert theorem2.stated_dimension(10**9, 2, 0.5) == math.ceil(18 * math.log(2) / 0.25)
    assert theorem2.stated_dimension(512, 1, 0.5) == math.ceil(5 * math.log(512) / 0.25)


def test_projections_are_the_proofs():
    e, f, r = theorem2.projections(4, 9, 0.3, np.random.default_rng(1), dtype=np.float32)
    assert e.dtype == f.dtype == r.dtype == np.float32
    np.testing.assert_allclose(e, 0.3 * r, rtol=1e-6)
    np.testing.assert_allclose(f, math.exp(-0.3) * r, rtol=1e-6)


def test_errors_are_the_formulas():
    q, k, v = inputs(12, 4, mean=0.5)
    got = theorem2.attention_errors(q, k, v, 5, 0.7, trials=2, rng=np.random.default_rng(2), scale=0.9)
    draws, scores = np.random.default_rng(2), 0.9 * q @ k.T
    p = softmax.matrix(q, k, scale=0.9)
    for trial in range(2):
        e, f, r = theorem2.projections(5, 12, 0.7, draws)
        for i in range(12):
            unit = np.linalg.norm(p[i]) * np.linalg.norm(v)
            mixed = np.exp(scores[i] @ e.T)
            error = np.linalg.norm(mixed / mixed.sum() @ (f @ v) - p[i] @ v)
            assert got.linformer[trial, i] == pytest.approx(error / unit)
            assert got.low_rank[trial, i] == pytest.approx(np.linalg.norm(p[i] @ r.T @ r @ v - p[i] @ v) / unit)
            error = np.linalg.norm(mixed @ (f @ v) - np.exp(scores[i]) @ v)
            unit = np.linalg.norm(np.exp(scores[i])) * np.linalg.norm(v)
            assert got.unnormalised[trial, i] == pytest.approx(error / unit)
    np.testing.assert_allclose(got.zero, np.linalg.norm(p @ v, axis=1) / np.linalg.norm(p, axis=1) / np.linalg.norm(v))
    assert (got.zero <= 1).all()


@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_small_delta_has_the_limit_of_the_docstring(mean):
    q, k, v = inputs(mean=mean)
    errors = theorem2.attention_errors(q, k, v, 8, 2.0**-64, trials=1500, rng=np.random.default_rng(3))
    for row in (0, 17):
        squares = errors.linformer[:, row] ** 2
        # 5 standard errors around (6).
        assert abs(squares.mean() - errors.limit[row] ** 2) < 5 * squares.std() / math.sqrt(1500)


def test_the_construction_fails_where_values_have_a_mean_whatever_k_is_and_theorem_1_does_not():
    eps, n = 0.3, 512
    q, k, v = inputs(n, 32, mean=1.0, dtype=np.float32)
    rng = np.random.default_rng(4)
    stated = theorem2.stated_dimension(n, 32, eps)
    assert stated < n
    for reduced in (stated, n):
        for delta in (2.0**-n, 1 / n, 1.0):
            errors = theorem2.attention_errors(q, k, v, reduced, delta, trials=5, rng=rng)
            assert (errors.linformer > eps).mean() > 0.9  # stated: o(1)
            assert (errors.low_rank <= eps).all()
    # For values of mean 0 the statement holds, as the answer 0 does.
    errors = theorem2.attention_errors(q, k, v - 1, stated, 2.0**-n, trials=5, rng=rng)
    assert (errors.linformer <= eps).all()
    assert (errors.zero <= eps).all()


@pytest.mark.parametrize(("dtype", "digits"), [(np.float32, 24), (np.float64, 53)])
def test_tiny_deltas_lose_the_query(dtype, digits):
    q, k, _ = inputs(dtype=dtype)
    rng = np.random.default_rng(5)
    largest = 64  # above every mixed score at delta = 1: they have a standard deviation of about |w| / sqrt(k) = 3
    assert theorem2.query_dependence(q, k, 8, 2.0 ** -(digits + math.log2(largest)), rng=rng) == 0
    assert 0 < theorem2.query_dependence(q, k, 8, 2.0 ** -(digits - 6), rng=rng) < 1e-3
    # The paper's delta itself: all rows of weights equal to the last bit.
    e = theorem2.projections(8, 64, 2.0**-64, rng, dtype=dtype).e
    assert (linformer.matrix(q, k, e) == dtype(1 / 8)).all()
    for reduced in (49, 61):  # 49 fl(1/49) is not 1, nor is 61 fl(1/61) in float32
        assert theorem2.query_dependence(q, k, reduced, 2.0**-64, rng=rng) == 0
    # It is 0 from n = 150 and n = 1075 on, and 1/2^n was not just before.
    vanishes = {24: 150, 53: 1075}[digits]
    assert dtype(2.0**-vanishes) == 0 < dtype(2.0 ** -(vanishes - 1))


@pytest.mark.parametrize("delta", [0.1, 1.0])
def test_the_unnormalised_mean_is_a_multiple_of_the_scores(delta):
    rng = np.random.default_rng(6)
    x, y, k = rng.standard_normal(10), rng.standard_normal(10), 6
    r = rng.standard_normal((100_000, k, 10)) / math.sqrt(k)
    sums = np.sum(np.exp(delta * (r @ x)) * math.exp(-delta) * (r @ y), axis=1)
    expected = theorem2.unnormalised_mean(x, y, delta, k)
    assert abs(sums.mean() - expected) < 5 * sums.std() / math.sqrt(100_000)
    assert theorem2.unnormalised_mean(2 * x, y, 1e-6, k) == pytest.approx(2e-6 * (x @ y), rel=1e-5)


def test_step_b_does_not_vanish():
    rng = np.random.default_rng(7)
    x = rng.standard_normal(200)
    got = theorem2.step_b(x, 2.0**-200, 30, trials=800, rng=rng)
    for measured, limit in ((got.needed, got.needed_limit), (got.printed, got.printed_limit)):
        squares = measured**2
        assert abs(squares.mean() - limit**2) < 5 * squares.std() / math.sqrt(800)
    assert got.needed_limit > 1  # stated: o(1)
    longer = theorem2.step_b(rng.standard_normal(20_000), 2.0**-200, 30, trials=1, rng=rng)
    assert longer.needed_limit > 1
    # E exp(2 x) = e^2 for normal scores: (23) as printed tends to 1/e, not to 0.
    assert longer.printed_limit == pytest.approx(math.exp(-1), rel=0.1)


def test_what_exp_cannot_hold_cancels():
    q, k, v = np.array([[400.0]]), np.array([[1.0], [0.5], [0.0]]), np.array([[1.0], [2.0], [3.0]])
    errors = theorem2.attention_errors(q, k, v, 3, 1e-9, trials=2, rng=np.random.default_rng(0), scale=1.0)
    np.testing.assert_allclose(errors.unnormalised, 1 / math.sqrt(14), rtol=1e-6)  # one weight of 1, and the answer 0
    x = 800 + np.random.default_rng(1).standard_normal(20)
    got = theorem2.step_b(x, 1e-9, 6, trials=3, rng=np.random.default_rng(0))
    assert got.needed_limit == 1
    assert np.isfinite(got.needed).all()


def test_overflow_is_an_infinite_error():
    q, k, v = inputs(dtype=np.float32)
    errors = theorem2.attention_errors(q, k, v, 4, 100.0, trials=3, rng=np.random.default_rng(8))
    assert np.isinf(errors.unnormalised).any()
    assert not np.isnan(errors.unnormalised).any()
    assert np.isfinite(errors.linformer).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda rng: theorem2.stated_dimension(8, 0, 0.5), "d: expected an integer of at least 1"),
        (lambda rng: theorem2.stated_dimension(8, 8, 0.0), "eps: expected 0 < eps < 1"),
        (lambda rng: theorem2.projections(2, 3, -1.0, rng), "delta: expected a finite number of at least 0, got -1.0"),
        (lambda rng: theorem2.projections(2, 3, math.inf, rng), "delta: expected"),
        (lambda rng: theorem2.attention_errors(*inputs(8), 9, 0.1, trials=1, rng=rng), "e: expected R <= L = 8"),
        (lambda rng: theorem2.attention_errors(*inputs(8), 2, 0.1, trials=0, rng=rng), "trials: expected"),
        (
            lambda rng: theorem2.attention_errors(*np.ones((3, 2, 4, 4)), 2, 0.1, trials=1, rng=rng),
            "q: expected one head",
        ),
        (
            lambda rng: theorem2.attention_errors(*np.ones((2, 3, 3)), np.zeros((3, 3)), 2, 0.1, trials=1, rng=rng),
            "v: expected values that are not all 0",
        ),
        (lambda rng: theorem2.unnormalised_mean(np.ones((3, 3)), np.ones(3), 0.1, 2), r"x: expected a vector \(n,\)"),
        (lambda rng: theorem2.unnormalised_mean(np.ones(3), np.ones(2), 0.1, 2), r"y: expected shape \(3,\) like x"),
        (lambda rng: theorem2.step_b(np.ones((3, 3)), 0.1, 2, trials=1, rng=rng), r"x: expected a vector \(n,\)"),
        (lambda rng: theorem2.unnormalised_mean(np.ones(3), np.ones(3), 0.1, 0), "k: expected an integer"),
        (lambda rng: theorem2.step_b(np.ones(3), -0.1, 2, trials=1, rng=rng), "delta: expected"),
        (lambda rng: theorem2.step_b(np.array([1, np.inf]), 0.1, 2, trials=1, rng=rng), "x: expected finite scores"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call(np.random.default_rng(0))
