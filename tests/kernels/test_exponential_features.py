"""Exponential features in NumPy and in Numba: the formulas, whatever the shape, and what is out of range."""

import features_page as in_numpy
import numpy as np
import pytest
from cases import each_compiled_dtype

from linattn_ref.attention import feature_maps, linear, performer
from linattn_ref.kernels import jit, reference
from linattn_ref.kernels.jit.loops.linear import exponential_features as in_numba
from linattn_ref.kernels.jit.loops.linear.exponential_features import ROWS
from linattn_ref.kernels.jit.loops.simd.vector import lanes

KERNELS = pytest.mark.parametrize("kernel", [in_numpy, in_numba], ids=["numpy", "numba"])
WIDTH = lanes(np.empty(0, np.float32))
SHAPES = [(1, 1), (3, WIDTH - 1), (2, ROWS + 1, WIDTH + 1), (2, 3, 2 * ROWS, 2 * WIDTH), (1, 5, 3)]


def draw(shape, dtype):
    """Exponents, and a scale."""
    rng = np.random.default_rng(0)
    return [30 * rng.standard_normal(size).astype(dtype) for size in (shape, (*shape[:-2], shape[-1]))]


@KERNELS
@each_compiled_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_formulas(kernel, dtype, shape):
    exponent, r = draw(shape, dtype)
    rounding = 200 * np.finfo(dtype).eps  # of exponents of size 100
    largest = kernel.largest(exponent)
    np.testing.assert_array_equal(largest, exponent.max(axis=-2))
    keys = kernel.of_keys(exponent.copy(), largest)
    np.testing.assert_allclose(keys, np.exp(exponent - largest[..., None, :]), rtol=rounding, atol=1e-37)
    shifted = exponent + r[..., None, :]
    queries = kernel.of_queries(exponent.copy(), r)
    expected = np.exp(shifted - shifted.max(axis=-1, keepdims=True))
    np.testing.assert_allclose(queries, expected, rtol=rounding, atol=1e-37)
    assert keys.dtype == queries.dtype == dtype


@KERNELS
def test_one_scale_for_all_columns_and_masked_keys(kernel):
    exponent, _ = draw((2, 5, 7), np.float64)
    exponent[:, 2] = -np.inf
    r = exponent.max(axis=(-1, -2), keepdims=True)[..., 0]  # (2, 1)
    keys = kernel.of_keys(exponent.copy(), r)
    np.testing.assert_allclose(keys, np.exp(exponent - r[..., None]), rtol=1e-13)
    assert not keys[:, 2].any()


@KERNELS
@pytest.mark.parametrize("constant", [-5000.0, 5000.0])
def test_a_constant_in_all_exponents_of_queries_changes_nothing(kernel, constant):
    """Also where 0 is far above them: a row ends before a vector of the processor does."""
    exponent, r = draw((2, 5, WIDTH + 1), np.float64)
    expected, got = (kernel.of_queries(exponent + c, r) for c in (0, constant))
    np.testing.assert_allclose(got, expected, rtol=1e-11)  # 5000 has four digits


@KERNELS
def test_they_are_written_over_the_exponents(kernel):
    exponent, r = draw((2, 5, 7), np.float64)
    for function in (kernel.of_keys, kernel.of_queries):
        mine = exponent.copy()
        assert np.shares_memory(function(mine, r), mine)


@each_compiled_dtype
@pytest.mark.parametrize(
    ("n", "length", "c", "m"), [(1, 1, 1, 1), (7, 2 * ROWS + 5, WIDTH + 3, 3), (ROWS + 1, 9, 5, WIDTH + 1)]
)
@pytest.mark.parametrize("leading", [(), (2, 3)], ids=str)
def test_over_all_keys(dtype, n, length, c, m, leading):
    rng = np.random.default_rng(0)
    shapes = (*leading, n, 5), (*leading, length, 5), (c, 5), (*leading, length, m)
    x_q, x_k, directions, v = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    directions[:, -1] = 1
    x_q[..., -1] -= 300  # so that what is beyond the last feature would be infinite
    x_k[..., : length // 2, -1] = -np.inf  # keys that are not seen
    expected = in_numpy.over_all_keys(x_q, x_k, directions, v)
    for got, want in zip(in_numba.over_all_keys(x_q, x_k, directions, v), expected, strict=True):
        assert got.shape == want.shape
        assert got.dtype == dtype
        tolerance = 3000 * np.finfo(dtype).eps  # of exponents of size 300
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * max(1, abs(v).max()))


@KERNELS
def test_over_keys_of_which_none_is_seen(kernel):
    x = np.ones((3, 2))
    *_, out, denominator = kernel.over_all_keys(x, [1, -np.inf] * x, np.ones((4, 2)), x)
    assert not out.any()
    assert not denominator.any()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_queries_and_keys_of_any_size(causal):
    """Exponents of queries down to -inf, beside which the scale of the keys would round away; a key of infinity."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 8, 4))
    q[4:] *= np.reshape([1e8, 1e20, 1e100, 1e155], (4, 1))
    phi = feature_maps.favor_positive(rng.standard_normal((6, 4)))
    options = {"feature_map": phi, "eps": 0.0}
    expected, _ = linear.forward(q, k, v, causal=causal, **options)
    out, _ = linear.forward(q, k, v, causal=causal, kernels=jit, **options)
    np.testing.assert_allclose(out, expected, rtol=1e-10)
    for room in (jit, reference) if causal else ():
        state = linear.init_state((), 4, 4, feature_map=phi)
        for token, row in zip(zip(q, k, v, strict=True), expected, strict=True):
            out, state = linear.step(*token, state, kernels=room, **options)
            np.testing.assert_allclose(out, row, rtol=1e-10)
    k[2, 1] = np.inf
    expected, found = (linear.forward(q, k, v, causal=causal, kernels=room, **options)[0] for room in (reference, jit))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))


@each_compiled_dtype
@pytest.mark.parametrize("room", [reference, jit])
def test_a_masked_key_is_no_invalid_number(room, dtype):
    """Its exponent is -inf, which times the zeros that a matrix product is filled up with would be NaN."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 2, 9, 4)).astype(dtype)
    key_mask = np.arange(9) % 2 == np.arange(2)[:, None]
    with np.errstate(invalid="raise"):
        out, saved = performer.forward(q, k, v, rng.standard_normal((6, 4)), key_mask=key_mask, kernels=room)
        performer.backward(np.ones_like(out), saved)
    assert np.isfinite(out).all()
