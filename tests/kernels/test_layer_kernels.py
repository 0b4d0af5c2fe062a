"""The loops of layers and optimisers in Numba: those of the reference, whatever the shape, buffers and threads."""

import numba
import numpy as np
import pytest
from cases import each_compiled_dtype
from scipy.special import ndtr

from linattn_ref.kernels import jit, reference

# Each dtype compiles anew, a second and more a kernel.
SHAPES = [(1, 1), (2, 3, 5), (70, 37), (33, 64)]  # fewer rows than a task, and more; whole vectors, and not


def drawn(shape, dtype, count, seed=0):
    return np.random.default_rng(seed).standard_normal((count, *shape)).astype(dtype)


def both(kernel, function, *args, **options):
    """In `jit`, and in the reference in float64."""
    exact = [x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x for x in args]
    rooms = ((jit, args), (reference, exact))
    return (getattr(getattr(room, kernel), function)(*given, **options) for room, given in rooms)


def assert_near(got, exact, dtype, roundings=64):
    for a, b in zip(got, exact, strict=True):
        assert a.dtype == dtype
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=roundings * np.finfo(dtype).eps * max(1, abs(b).max()))


@each_compiled_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("alone", [False, True])
def test_layer_norm(shape, dtype, alone):
    x, added, d_out, past = drawn(shape, dtype, 4)
    gain, bias = drawn(shape[-1:], dtype, 2, seed=1)
    if alone:
        added = past = None
    got, exact = both("layer_norm", "forward", x, added, gain, bias, 1e-3)
    assert_near(got, exact, dtype)
    (total, _, mean, s), (exact_total, _, exact_mean, exact_s) = got, exact
    got = jit.layer_norm.backward(d_out, past, total, mean, s, gain)
    exact = reference.layer_norm.backward(
        *(None if x is None else x.astype(np.float64) for x in (d_out, past)), exact_total, exact_mean, exact_s, gain
    )
    assert_near(got, exact, dtype, 1024)  # a row of one number has variance 0: divided by s = 0.03 twice


@each_compiled_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gelu(shape, dtype):
    (x,), (bias,) = drawn(shape, dtype, 1), drawn(shape[-1:], dtype, 1, seed=1)
    for b in (bias, bias[::-1], np.repeat(bias, 2)[::2], None):
        assert_near(*both("gelu", "forward", x, b), dtype, 4)


@each_compiled_dtype
def test_gelu_is_that_of_scipys_normal_distribution(dtype):
    """Far below 0 too, in relative numbers: there a rounding of ``x^2 / 2`` is ``x^2 / 2`` of the exponential's."""
    x = np.concatenate([np.linspace(-12, 12, 10001), [0.0, -0.0, 1e-30]]).astype(dtype)
    y, slope = jit.gelu.forward(x, None)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(y, exact * ndtr(exact), rtol=144 * np.finfo(dtype).eps, atol=np.finfo(dtype).tiny)
    density = np.exp(-exact * exact / 2) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(slope, ndtr(exact) + exact * density, rtol=0, atol=4 * np.finfo(dtype).eps)


def test_gelu_at_its_ends():
    y, slope = jit.gelu.forward(np.array([np.inf, 1e200, -1e200, -50.0, np.nan]), None)
    np.testing.assert_array_equal(y, [np.inf, 1e200, 0, 0, np.nan])
    np.testing.assert_array_equal(slope, [1, 1, 0, 0, np.nan])


@each_compiled_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cross_entropy(shape, dtype):
    (scores,), rng = drawn(shape, dtype, 1), np.random.default_rng(1)
    targets, share = rng.integers(0, shape[-1], shape[:-1]), rng.random(shape[:-1]).astype(dtype)
    assert_near(*both("cross_entropy", "forward", 20 * scores, targets, share), dtype)
    share[...], scores[..., 0] = 0, np.nan  # what does not count has no gradient, whatever it is
    for room in (jit, reference):
        np.testing.assert_array_equal(room.cross_entropy.forward(scores, targets, share)[1], 0)


@each_compiled_dtype
@pytest.mark.parametrize("changed", [{}, {"decay": 0.1}, {"keep": 0.9}, {"root": 0.0, "eps": 1.0}], ids=str)
def test_adam(dtype, changed):
    options = {"betas": (0.8, 0.9), "size": 0.1, "root": 1.5, "eps": 1e-3, **changed}
    for size in (1, jit.adam.BLOCK + 3):
        p, g, m, v = drawn((size,), dtype, 4)
        got, exact = [p, m, abs(v)], [x.astype(np.float64) for x in (p, m, abs(v))]
        jit.adam.step(got[0], g, *got[1:], **options)
        reference.adam.step(exact[0], g.astype(np.float64), *exact[1:], **options)
        assert_near(got, exact, dtype, 8)


def in_buffers(x, d_y, gain, share, targets, work):
    """All that has a buffer, in those that ``work`` gives; a sum and a slope in the place of what they are made of."""
    total, out, mean, s = jit.layer_norm.forward(x, d_y, gain, gain, 1e-5, total=work(d_y), out=work(0 * x))
    d_total = jit.layer_norm.backward(d_y, x, total, mean, s, gain, d_total=work(0 * x))
    y, slope = jit.gelu.forward(work(x), gain, out=work(0 * x), slope=work(x))
    d_x = jit.gelu.backward(d_y, slope, out=work(d_y))
    return total, out, *d_total, y, slope, d_x, *jit.cross_entropy.forward(x, targets, share, d_scores=work(0 * x))


def gaps(x):
    """A copy with gaps between its numbers."""
    return np.repeat(x, 2, axis=-1)[..., ::2]


def test_buffers_layouts_and_threads_change_no_bit():
    x, d_y = drawn((3, 40, 9), np.float64, 2)
    (gain,), (share, targets) = drawn((9,), np.float64, 1), np.random.default_rng(0).random((2, 3, 40))
    rest, threads = (gain, share, (9 * targets).astype(int)), numba.get_num_threads()
    expected = in_buffers(x, d_y, *rest, np.copy)
    readonly = [x.copy(), d_y.copy()]
    for array in readonly:
        array.setflags(write=False)
    results = [in_buffers(gaps(x), gaps(d_y), *rest, gaps), in_buffers(*readonly, *rest, np.array)]
    try:
        numba.set_num_threads(1)
        results.append(in_buffers(x, d_y, *rest, np.copy))
    finally:
        numba.set_num_threads(threads)
    for result in results:
        for a, b in zip(result, expected, strict=True):
            np.testing.assert_array_equal(a, b)
