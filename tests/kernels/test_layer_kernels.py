"""Layers and optimisers in Numba: those of the pages, whatever the shape, layout and threads."""

import numba
import numpy as np
import pytest
from cases import each_compiled_dtype
from scipy.special import ndtr

from linattn_ref.kernels import jit
from linattn_ref.kernels.jit import loops
from linattn_ref.nested import leaves, map_arrays
from linattn_ref.nn import cross_entropy, gelu, layer_norm
from linattn_ref.training import adam, radam

# Each dtype compiles anew, a second and more a kernel.
SHAPES = [(1, 1), (2, 3, 5), (70, 37), (33, 64)]  # fewer rows than a task, and more; whole vectors, and not


def drawn(shape, dtype, count, seed=0):
    return np.random.default_rng(seed).standard_normal((count, *shape)).astype(dtype)


def both(page, d_y, *args, **options):
    """Both passes in `jit`, and those of the page in float64."""
    found = []
    for kernels, dtype in ((jit, None), (None, np.float64)):
        given, d, named = (map_arrays(lambda x, t=dtype: x.astype(t or x.dtype) if x.dtype.kind == "f" else x, each)
                           for each in (args, d_y, tuple(options.values())))  # fmt: skip
        named = dict(zip(options, named, strict=True)) | ({"kernels": jit} if kernels else {})
        y, saved = page.forward(*given, **named)
        found.append([np.asarray(y), *(x for _, x in leaves(page.backward(d, saved)))])
    return found


def assert_near(got, exact, dtype, roundings=64):
    for a, b in zip(got, exact, strict=True):
        assert a.dtype == dtype
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=roundings * np.finfo(dtype).eps * max(1, abs(b).max()))


@each_compiled_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layer_norm(shape, dtype):
    x, d_y = drawn(shape, dtype, 2)
    params = layer_norm.Params(*drawn(shape[-1:], dtype, 2, seed=1))
    # A row of one number has variance 0: divided by s = 0.03 twice.
    assert_near(*both(layer_norm, d_y, x, params, eps=1e-3), dtype, 1024)


@each_compiled_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gelu(shape, dtype):
    x, d_y = drawn(shape, dtype, 2)
    assert_near(*both(gelu, d_y, x), dtype, 16)
    (bias,) = drawn(shape[-1:], dtype, 1, seed=1)
    for b in (bias, bias[::-1], np.repeat(bias, 2)[::2]):
        for a, expected in zip(loops.layers.gelu.forward(x, b), loops.layers.gelu.forward(x + b, None), strict=True):
            np.testing.assert_array_equal(a, expected)


@each_compiled_dtype
def test_gelu_is_that_of_scipys_normal_distribution(dtype):
    """Far below 0 too, in relative numbers: there a rounding of ``x^2 / 2`` is ``x^2 / 2`` of the exponential's."""
    x = np.concatenate([np.linspace(-12, 12, 10001), [0.0, -0.0, 1e-30]]).astype(dtype)
    y, slope = loops.layers.gelu.forward(x, None)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(y, exact * ndtr(exact), rtol=144 * np.finfo(dtype).eps, atol=np.finfo(dtype).tiny)
    density = np.exp(-exact * exact / 2) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(slope, ndtr(exact) + exact * density, rtol=0, atol=4 * np.finfo(dtype).eps)


def test_gelu_at_its_ends():
    y, slope = loops.layers.gelu.forward(np.array([np.inf, 1e200, -1e200, -50.0, np.nan]), None)
    np.testing.assert_array_equal(y, [np.inf, 1e200, 0, 0, np.nan])
    np.testing.assert_array_equal(slope, [1, 1, 0, 0, np.nan])


@each_compiled_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cross_entropy(shape, dtype):
    (scores,), rng = drawn(shape, dtype, 1), np.random.default_rng(1)
    targets, weight = rng.integers(0, shape[-1], shape[:-1]), rng.random(shape[:-1]).astype(dtype)
    assert_near(*both(cross_entropy, dtype(1), 20 * scores, targets, weight=weight), dtype)
    weight.flat[1:], scores.reshape(-1, shape[-1])[1:, 0] = 0, np.nan  # what does not count has no gradient
    for kernels in ({}, {"kernels": jit}):
        _, saved = cross_entropy.forward(scores, targets, weight=weight, **kernels)
        found = cross_entropy.backward(1.0, saved).scores.reshape(-1, shape[-1])
        np.testing.assert_array_equal(found[1:], 0)


@each_compiled_dtype
@pytest.mark.parametrize("optimiser", [adam, radam])
@pytest.mark.parametrize("changed", [{}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "decoupled": True}], ids=str)
def test_optimisers(dtype, optimiser, changed):
    """More numbers than a task has; RAdam before it knows anything of v, and after."""
    options = {"learning_rate": 0.1, "betas": (0.8, 0.9), "eps": 1e-3, **changed}
    for size in (1, loops.layers.adam.BLOCK + 3):
        (p,), steps = drawn((size,), dtype, 1), drawn((size,), dtype, 9, seed=1)
        got, exact = p.copy(), p.astype(np.float64)
        state, of_exact = optimiser.init_state(got), optimiser.init_state(exact)
        for g in steps:
            state = optimiser.step(got, g, state, kernels=jit, **options)
            of_exact = optimiser.step(exact, g.astype(np.float64), of_exact, **options)
        assert_near((got, *state[:2]), (exact, *of_exact[:2]), dtype, 64)


def all_loops(x, d_y, gain, share, targets):
    y, mean, s = loops.layers.layer_norm.forward(x, gain, gain, 1e-5)
    of_norm = loops.layers.layer_norm.backward(d_y, x, mean, s, gain)
    return y, *of_norm, *loops.layers.gelu.forward(x, gain), *loops.layers.cross_entropy.forward(x, targets, share)


def gaps(x):
    """A copy with gaps between its numbers."""
    return np.repeat(x, 2, axis=-1)[..., ::2]


def test_layouts_and_threads_change_no_bit():
    x, d_y = drawn((3, 40, 9), np.float64, 2)
    (gain,), (share, targets) = drawn((9,), np.float64, 1), np.random.default_rng(0).random((2, 3, 40))
    rest, threads = (gain, share, (9 * targets).astype(int)), numba.get_num_threads()
    expected = all_loops(x, d_y, *rest)
    readonly = [x.copy(), d_y.copy()]
    for array in readonly:
        array.setflags(write=False)
    results = [all_loops(gaps(x), gaps(d_y), *rest), all_loops(*readonly, *rest)]
    try:
        numba.set_num_threads(1)
        results.append(all_loops(x, d_y, *rest))
    finally:
        numba.set_num_threads(threads)
    for result in results:
        for a, b in zip(result, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_slope_may_take_the_place_of_the_output():
    """Where nobody reads it."""
    (x,) = drawn((3, 40, 9), np.float64, 1)
    alone, same = loops.layers.gelu.forward(x, None, with_slope=False)
    np.testing.assert_array_equal(alone, loops.layers.gelu.forward(x, None)[0])
    assert np.may_share_memory(alone, same)
