import numpy as np
import pytest

from linattn_ref.attention import softmax
from linattn_ref.theory import eckart_young as ey
from linattn_ref.theory.spectrum import singular_values


@pytest.fixture
def matrix():
    q, k = np.random.default_rng(0).standard_normal((2, 30, 6))
    return softmax.matrix(q, k)


def test_error_is_the_tail_of_the_spectrum_and_no_competitor_is_nearer(matrix):
    ranks = (1, 3, 10, 29, 30)
    errors = ey.rank_errors(matrix, ranks, rng=np.random.default_rng(1), draws=6)
    values = singular_values(matrix)
    for k, each in zip(ranks, errors, strict=True):
        assert each.rank == k
        # Rounding of a 30 x 30 SVD in float64 of a matrix of norm about 2.
        assert each.measured_frobenius == pytest.approx(np.sqrt(np.sum(values[k:] ** 2)), abs=1e-14)
        assert each.measured_spectral == pytest.approx(values[k] if k < 30 else 0, abs=1e-14)
        assert each.stated_frobenius == pytest.approx(each.measured_frobenius, abs=1e-14)
        assert each.stated_spectral == pytest.approx(each.measured_spectral, abs=1e-14)
        assert set(each.competitors_frobenius) == set(ey.COMPETITORS)
        assert min(each.competitors_frobenius.values()) >= each.stated_frobenius - 1e-14
        assert min(each.competitors_spectral.values()) >= each.stated_spectral - 1e-14


def test_truncation_has_its_rank_and_full_rank_is_the_matrix(matrix):
    for k in (0, 1, 7):
        assert np.linalg.matrix_rank(ey.truncated_svd(matrix, k)) == k
    np.testing.assert_allclose(ey.truncated_svd(matrix, 30), matrix, atol=1e-14)
    assert ey.truncated_svd(matrix.astype(np.float32), 4).dtype == np.float32


def test_a_neighbour_of_the_optimum_is_worse(matrix):
    """Moving the truncated SVD a little, at the same rank, raises both errors: it is a minimum, not only a good one."""
    rng = np.random.default_rng(2)
    best = ey.truncated_svd(matrix, 4)
    u, s, v_t = (x[..., :4] if i < 2 else x[:4] for i, x in enumerate(np.linalg.svd(best)))
    for _ in range(20):
        near = ((u + 0.05 * rng.standard_normal(u.shape)) * s) @ (v_t + 0.05 * rng.standard_normal(v_t.shape))
        for norm in ("fro", 2):
            assert np.linalg.norm(matrix - near, norm) > np.linalg.norm(matrix - best, norm)


@pytest.mark.parametrize("kind", ey.COMPETITORS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_competitors_have_the_rank_and_dtype(matrix, kind, dtype):
    got = ey.competitor(matrix.astype(dtype), 5, kind, np.random.default_rng(3))
    assert got.dtype == dtype
    assert np.linalg.matrix_rank(got, rtol=1e-5) == 5


def test_iterating_the_sketch_comes_near_the_optimum(matrix):
    (each,) = ey.rank_errors(matrix, [10], rng=np.random.default_rng(4), draws=3)
    power, sketch = each.competitors_frobenius["power"], each.competitors_frobenius["sketch"]
    assert each.stated_frobenius <= power < 1.1 * each.stated_frobenius < sketch
    assert sketch < each.competitors_frobenius["projection"] < each.competitors_frobenius["johnson_lindenstrauss"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda rng: ey.truncated_svd(np.ones((3, 4)), 4), "k: expected an integer from 0 to 3, got 4"),
        (lambda rng: ey.truncated_svd(np.full((3, 4), np.inf), 1), "matrix: expected one finite matrix"),
        (lambda rng: ey.truncated_svd(np.ones((2, 3, 4)), 1), "matrix: expected one finite matrix"),
        (lambda rng: ey.tail_frobenius(np.ones(3), -1), "k: expected an integer from 0 to 3, got -1"),
        (lambda rng: ey.tail_frobenius(np.ones((2, 3)), 1), r"values: expected a vector \(n,\), got shape \(2, 3\)"),
        (lambda rng: ey.tail_spectral(np.array([1.0, 2.0]), 1), "largest first"),
        (lambda rng: ey.competitor(np.ones((2, 3, 3)), 1, "power", rng), "matrix: expected one finite matrix"),
        (lambda rng: ey.competitor(np.full((3, 3), np.nan), 1, "johnson_lindenstrauss", rng), "matrix: expected one"),
        (lambda rng: ey.competitor(np.eye(3), 1, "best", rng), "kind: expected one of johnson_lindenstrauss, proj"),
        (lambda rng: ey.competitor(np.eye(3), 4, "sketch", rng), "k: expected an integer from 0 to 3, got 4"),
        (lambda rng: ey.rank_errors(np.eye(3), [0], rng=rng), "ranks: expected an integer of at least 1, got 0"),
        (lambda rng: ey.rank_errors(np.eye(3), [7], rng=rng), "ranks: expected an integer from 0 to 3, got 7"),
        (lambda rng: ey.rank_errors(np.eye(3), [1], rng=rng, draws=0), "draws: expected"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call(np.random.default_rng(0))


def test_tails_are_of_arrays():
    for tail in (ey.tail_frobenius, ey.tail_spectral):
        with pytest.raises(TypeError, match=r"values: expected .*, got list"):
            tail([2.0, 1.0], 1)
