import math

import numpy as np
import pytest
import scipy.stats

from linattn_ref.theory import johnson_lindenstrauss as jl

# The Monte Carlo tests use fixed seeds and intervals that miss the truth with probability 1e-4.
CONFIDENCE = 1 - 1e-4


@pytest.mark.parametrize("make", [jl.gaussian_projection, jl.sign_projection])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_projections_have_mean_zero_and_variance_one_over_k(make, dtype):
    r = make(8, 5, np.random.default_rng(0), leading=(5000,), dtype=dtype)
    assert r.shape == (5000, 8, 5)
    assert r.dtype == dtype
    assert abs(r.mean()) < 5 / math.sqrt(8 * r.size)  # 5 standard errors
    assert abs(8 * np.mean(np.square(r)) - 1) < 5 * math.sqrt(2 / r.size)
    if make is jl.sign_projection:
        np.testing.assert_allclose(np.abs(r), 1 / math.sqrt(8), rtol=1e-6)


@pytest.mark.parametrize(("eps", "k"), [(0.2, 20), (0.5, 10), (0.5, 60)])
def test_measured_norm_failure_covers_the_chi_squared_probability(eps, k):
    rng = np.random.default_rng(1)
    errors = jl.norm_errors(rng.standard_normal(7), k, trials=4000, rng=rng)
    found = jl.count_failures(errors, eps, jl.failure_bound(eps, k), confidence=CONFIDENCE)
    assert found.low <= jl.norm_failure(eps, k) <= found.high
    assert jl.norm_failure(eps, k) <= jl.failure_bound(eps, k)
    assert found.trials == 4000
    assert found.measured == found.failures / found.trials


def test_sign_projections_keep_a_single_coordinate_exactly_and_others_within_the_bound():
    rng = np.random.default_rng(2)
    x = np.zeros(6)
    x[2] = 3.0
    # k squares of 1/sqrt(k): rounding alone.
    assert jl.norm_errors(x, 30, trials=50, rng=rng, projection=jl.sign_projection).max() < 1e-14
    errors = jl.norm_errors(rng.standard_normal(16), 60, trials=2000, rng=rng, projection=jl.sign_projection)
    found = jl.count_failures(errors, 0.4, jl.failure_bound(0.4, 60), confidence=CONFIDENCE)
    assert 0 < found.low < found.high < found.stated


def test_blocks_change_nothing(monkeypatch):
    points = np.random.default_rng(3).standard_normal((4, 10))
    whole = jl.pairwise_errors(points, 5, trials=20, rng=np.random.default_rng(4))
    monkeypatch.setattr(jl, "BLOCK", 5 * 10 * 3)
    by_threes = jl.pairwise_errors(points, 5, trials=20, rng=np.random.default_rng(4))
    np.testing.assert_allclose(by_threes, whole, atol=1e-12)  # the same numbers, another order of sums


def test_blocks_are_as_small_as_many_points_need(monkeypatch):
    asked = []

    def remembering(k, n, rng, *, leading, dtype):
        asked.append(leading[0])
        return jl.gaussian_projection(k, n, rng, leading=leading, dtype=dtype)

    monkeypatch.setattr(jl, "BLOCK", 2 * 45 * 3)  # three projections of 45 differences
    points = np.random.default_rng(3).standard_normal((10, 2))
    jl.pairwise_errors(points, 2, trials=7, rng=np.random.default_rng(4), projection=remembering)
    assert asked == [3, 3, 1]


def test_pairwise_errors_are_those_of_the_distances():
    rng = np.random.default_rng(5)
    points = rng.standard_normal((5, 9))
    got = jl.pairwise_errors(points, 4, trials=1, rng=np.random.default_rng(6))[0]
    r = jl.gaussian_projection(4, 9, np.random.default_rng(6))
    before, after = (scipy.spatial.distance.pdist(x, "sqeuclidean") for x in (points, points @ r.T))
    np.testing.assert_allclose(got, np.abs(after / before - 1), atol=1e-12)
    k = jl.required_dimension(0.5, 0.1, vectors=10)
    worst = jl.pairwise_errors(points, k, trials=500, rng=rng).max(axis=1)
    found = jl.count_failures(worst, 0.5, 10 * jl.failure_bound(0.5, k))
    assert found.low < found.stated <= 0.1
    assert found.measured <= found.stated


@pytest.mark.parametrize("size", [2.0**-83, 2.0**66])
def test_errors_do_not_depend_on_the_size_of_the_points(size):
    points = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    found = [
        jl.pairwise_errors(np.float32(each) * points, 2, trials=4, rng=np.random.default_rng(1)) for each in (size, 1)
    ]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("vectors", [1, 45])
def test_required_dimension_is_the_smallest(vectors):
    k = jl.required_dimension(0.3, 0.01, vectors=vectors)
    assert vectors * jl.failure_bound(0.3, k) <= 0.01 < vectors * jl.failure_bound(0.3, k - 1)


@pytest.mark.parametrize("cosine", [0.0, 0.3, -0.3, 0.95])
def test_inner_product_failure_is_what_projections_do(cosine):
    rng = np.random.default_rng(7)
    x, y = np.array([1.0, 0, 0, 0]), np.array([cosine, math.sqrt(1 - cosine**2), 0, 0])
    for k, eps in ((1, 0.5), (12, 0.25)):
        r = jl.gaussian_projection(k, 4, rng, leading=(20000,))
        errors = np.abs(np.sum((r @ x) * (r @ y), axis=1) - cosine)
        found = jl.count_failures(errors, eps, 1.0, confidence=CONFIDENCE)
        assert found.low <= jl.inner_product_failure(cosine, eps, k) <= found.high


def test_inner_product_failure_is_largest_for_parallel_vectors_and_below_the_bound():
    cosines = (0.0, 0.2, 0.5, 0.9, 1.0)
    for k, eps in ((1, 0.7), (5, 0.3), (40, 0.3), (200, 0.1), (300, 0.5)):
        by_cosine = [jl.inner_product_failure(c, eps, k) for c in cosines]
        assert by_cosine == sorted(by_cosine)
        # The integrand ends at quantiles of 1e-15.
        assert by_cosine[-1] == pytest.approx(jl.norm_failure(eps, k), abs=1e-13)
        assert by_cosine[-1] <= jl.failure_bound(eps, k)


def test_relative_to_the_inner_product_itself_the_lemma_fails():
    """Linformer's Lemma 1 as its proof of Theorem 1 uses it, at a k where the bound is 2e-6."""
    k, eps, cosine = 440, 0.5, 0.01
    assert jl.failure_bound(eps, k) < 3e-6
    assert jl.inner_product_failure(cosine, eps, k) < 1e-12  # by |x| |y| it holds
    assert jl.inner_product_failure(cosine, eps * cosine, k) > 0.9  # by |x . y| it does not


def test_clopper_pearson_covers_and_is_exact_at_the_ends():
    assert jl.clopper_pearson(0, 10)[0] == 0
    assert jl.clopper_pearson(10, 10)[1] == 1
    # At the upper end for no failure, "no failure" has probability (1 - confidence) / 2.
    assert (1 - jl.clopper_pearson(0, 10)[1]) ** 10 == pytest.approx(0.025)
    for p in (0.03, 0.3):
        covered = [low <= p <= high for low, high in (jl.clopper_pearson(x, 50) for x in range(51))]
        assert scipy.stats.binom.pmf(np.arange(51), 50, p)[covered].sum() >= 0.95


def test_not_a_number_counts_as_a_failure():
    assert jl.count_failures(np.array([0.1, np.nan, 0.3]), 0.2, 1.0).failures == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: jl.failure_bound(1.0, 5), "eps: expected 0 < eps < 1, got 1.0"),
        (lambda: jl.failure_bound([0.5, 0.0], 5), "eps: expected 0 < eps < 1"),
        (lambda: jl.required_dimension(0.5, 0), "failure: expected a probability"),
        (lambda: jl.required_dimension(0.5, 0.1, vectors=0), "vectors: expected an integer of at least 1, got 0"),
        (lambda: jl.gaussian_projection(0, 3, np.random.default_rng()), "k: expected an integer"),
        (lambda: jl.sign_projection(2, 2.5, np.random.default_rng()), "n: expected an integer"),
        (lambda: jl.inner_product_failure(1.1, 0.1, 3), "cosine: expected"),
        (lambda: jl.inner_product_failure(0.1, 0, 3), "eps: expected eps > 0"),
        (lambda: jl.clopper_pearson(5, 4), "failures: expected 0 <= failures <= trials = 4, got 5"),
        (lambda: jl.count_failures(np.ones((3, 4)), 0.5, 0.1), r"errors: expected a vector \(n,\), got shape \(3, 4\)"),
        (lambda: jl.norm_failure(0.1, 0), "k: expected at least 1, got 0"),
        (lambda: jl.failure_bound(0.1, [3, 0]), "k: expected at least 1"),
        (lambda: jl.norm_errors(np.ones((1, 3)), 2, trials=1, rng=np.random.default_rng()), "x: expected a vector"),
        (lambda: jl.norm_errors(np.zeros(3), 2, trials=1, rng=np.random.default_rng()), "x: expected a finite vector"),
        (lambda: jl.norm_errors(np.array([np.nan]), 2, trials=1, rng=np.random.default_rng()), "x: expected a finite"),
        (
            lambda: jl.pairwise_errors(np.ones((2, 3)), 2, trials=1, rng=np.random.default_rng()),
            "points: expected diff",
        ),
        (lambda: jl.pairwise_errors(np.eye(3), 2, trials=0, rng=np.random.default_rng()), "trials: expected"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
