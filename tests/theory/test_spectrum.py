import numpy as np
import pytest
import scipy.stats

from linattn_ref.attention import softmax
from linattn_ref.theory import spectrum


@pytest.fixture
def attention():
    """A stack (2, 3) of softmax matrices, 40 x 56."""
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 3, 40, 8)), rng.standard_normal((2, 3, 56, 8))
    return softmax.matrix(q, k)


@pytest.mark.parametrize("method", spectrum.METHODS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_known_spectra(method, dtype):
    rng = np.random.default_rng(1)
    # What a method can resolve, relative to the largest value: machine epsilon times a small power of the size; its
    # square root where the Gram matrix squares the values.
    eps = 20 * np.finfo(dtype).eps
    tolerance = eps if method == "svd" else np.sqrt(eps)
    diagonal = np.array([0.5, -3.0, 2.0, 0.0])
    got = spectrum.singular_values(np.diag(diagonal).astype(dtype), method=method)
    np.testing.assert_allclose(got, [3, 2, 0.5, 0], atol=3 * tolerance)
    orthogonal = scipy.stats.ortho_group.rvs(12, random_state=rng).astype(dtype)
    np.testing.assert_allclose(spectrum.singular_values(orthogonal, method=method), np.ones(12), atol=tolerance)
    u, v = rng.standard_normal(5), rng.standard_normal(9)
    size = np.linalg.norm(u) * np.linalg.norm(v)
    got = spectrum.singular_values(np.outer(u, v).astype(dtype), method=method)
    assert got.shape == (5,)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, [size, 0, 0, 0, 0], atol=size * tolerance)


@pytest.mark.parametrize("method", spectrum.METHODS)
@pytest.mark.parametrize("transpose", [False, True])
def test_a_stack_is_its_matrices(attention, method, transpose):
    stack = attention.swapaxes(-1, -2) if transpose else attention
    got = spectrum.singular_values(stack, method=method)
    assert got.shape == (2, 3, 40)
    # float64: the smallest value here is above 1e-4, so the Gram matrix loses 1e-16 / 1e-4 of it.
    np.testing.assert_allclose(got, np.linalg.svd(stack, compute_uv=False), atol=1e-11)


@pytest.mark.parametrize("method", ["svd", "gram"])
@pytest.mark.parametrize("size", [2.0**-83, 2.0**83])
def test_any_scale(attention, method, size):
    """Also where the squares leave the range of float32."""
    matrix = attention[0, 0].astype(np.float32)
    expected = spectrum.singular_values(matrix, method=method)
    found = spectrum.singular_values(np.float32(size) * matrix, method=method)
    np.testing.assert_allclose(found / np.float32(size), expected, rtol=0, atol=1e-6 * expected[0])


def test_float32_errors_are_as_the_docstring_says():
    rng = np.random.default_rng(2)
    q, k = rng.standard_normal((2, 256, 32))
    matrix = softmax.matrix(q, k, scale=2 / np.sqrt(32))
    exact = spectrum.singular_values(matrix)
    for method, values, curve in (("svd", 1.1e-6, 1e-6), ("gram", 5e-5, 1.4e-5)):
        got = spectrum.singular_values(matrix.astype(np.float32), method=method)
        assert np.abs(got - exact).max() < values * exact[0]
        assert np.abs(spectrum.cumulative_share(got) - spectrum.cumulative_share(exact)).max() < curve


def test_cumulative_share():
    np.testing.assert_allclose(spectrum.cumulative_share(np.ones((2, 4))), [[0.25, 0.5, 0.75, 1]] * 2)
    np.testing.assert_allclose(spectrum.cumulative_share(np.array([3.0, 1.0, 0.0])), [0.75, 1, 1])
    got = spectrum.cumulative_share(
        np.sort(np.random.default_rng(3).uniform(size=(5, 300)).astype(np.float32))[:, ::-1]
    )
    assert got.dtype == np.float32
    assert (got[:, -1] == 1).all()
    assert (np.diff(got, axis=-1) >= 0).all()


def test_rank_for_share():
    values = np.array([[4.0, 3.0, 2.0, 1.0], [10.0, 0.0, 0.0, 0.0]])
    assert spectrum.rank_for_share(values, 0.4).tolist() == [1, 1]  # exactly reached counts
    assert spectrum.rank_for_share(values, 0.41).tolist() == [2, 1]
    assert spectrum.rank_for_share(values, 1).tolist() == [4, 1]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: spectrum.singular_values(np.ones(3)), ValueError, "matrix: expected at least 2 axes"),
        (lambda: spectrum.singular_values(np.ones((3, 3), int)), TypeError, "matrix: expected float32 or float64"),
        (lambda: spectrum.singular_values(np.full((2, 2), np.nan)), ValueError, "matrix: expected finite"),
        (lambda: spectrum.singular_values(np.ones((3, 0))), ValueError, "matrix: every axis"),
        (
            lambda: spectrum.singular_values(np.ones((3, 3)), method="qr"),
            ValueError,
            "method: expected one of svd, gram",
        ),
        (lambda: spectrum.cumulative_share(np.array([1.0, 2.0])), ValueError, "largest first"),
        (lambda: spectrum.cumulative_share(np.zeros(3)), ValueError, "all singular values are 0"),
        (lambda: spectrum.rank_for_share(np.ones(3), 0), ValueError, "share: expected 0 < share <= 1, got 0"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
