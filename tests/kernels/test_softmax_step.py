"""One query against a cache: the numbers of the formula for any size, nothing read after the length, nothing copied."""

import tracemalloc
from functools import partial

import numpy as np
import pytest
from cases import each_compiled_dtype
from numba import njit

from linattn_ref.attention import softmax
from linattn_ref.kernels import jit
from linattn_ref.kernels.jit.loops.simd.row_sums import add_products, store_totals
from linattn_ref.kernels.jit.loops.simd.vector import lanes, load
from linattn_ref.kernels.jit.loops.simd.vector_block import ROWS, zero_block
from linattn_ref.kernels.jit.loops.softmax import softmax_step
from linattn_ref.kernels.jit.loops.softmax.softmax_step import TILE

LENGTHS = (1, ROWS - 1, ROWS, ROWS + 1, 31, 33, TILE - 1, TILE, TILE + 1, 2 * TILE + ROWS + 3)


def drawn(length, d, m, leading=(2,), dtype=np.float64, room_left=3):
    """A query and a cache, in whose free rows stands what nobody may read."""
    rng = np.random.default_rng(length)
    q = rng.standard_normal((*leading, d)).astype(dtype)
    k, v = (rng.standard_normal((*leading, length + room_left, width)).astype(dtype) for width in (d, m))
    k[..., length:, :] = v[..., length:, :] = np.nan
    return q, k, v


def test_a_scale_that_is_a_whole_number_compiles_nothing_anew():
    q, k, v = drawn(3, 2, 2)
    of_half = softmax_step.step(q, k, v, 3, 0.5)
    compiled = [*softmax_step.step_heads.signatures]
    np.testing.assert_array_equal(softmax_step.step(q / 2, k, v, 3, 1), of_half)
    assert softmax_step.step_heads.signatures == compiled


def by_loops(q, k, v, length, scale):
    """The formula, in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    for head in np.ndindex(q.shape[:-1]):
        weights = [np.exp(scale * (q[head] @ k[head][j])) for j in range(length)]
        for j in range(length):
            out[head] += weights[j] * v[head][j] / sum(weights)
    return out


def close(dtype):
    """Some hundred roundings of numbers of size 1."""
    return partial(np.testing.assert_allclose, rtol=0, atol=200 * np.finfo(dtype).eps)


@each_compiled_dtype
@pytest.mark.parametrize("length", LENGTHS)
def test_any_length(length, dtype):
    q, k, v = drawn(length, 5, 3, dtype=dtype)
    out = softmax_step.step(q, k, v, length, 0.5)
    assert out.dtype == dtype
    close(dtype)(out, by_loops(q, k, v, length, 0.5))


@each_compiled_dtype
@pytest.mark.parametrize(("d", "m"), [(1, 1), (16, 33), (32, 32), (64, 16), (70, 130), (7, 64)])
def test_any_width(d, m, dtype):
    q, k, v = drawn(19, d, m, dtype=dtype)
    close(dtype)(softmax_step.step(q, k, v, 19, 0.3), by_loops(q, k, v, 19, 0.3))


@pytest.mark.parametrize("leading", [(), (1,), (2, 1, 3)])
def test_any_leading_axes(leading):
    q, k, v = drawn(9, 4, 3, leading)
    close(float)(softmax_step.step(q, k, v, 9, 0.5), by_loops(q, k, v, 9, 0.5))


def test_a_later_maximum_and_scores_that_overflow():
    """The largest score is in the last tile, and exp of it is inf."""
    q, k, v = drawn(3 * TILE, 4, 3)
    k[:, 3 * TILE - 2] = 1e3 * q
    out = softmax_step.step(q, k, v, 3 * TILE, 1.0)
    close(float)(out, v[:, 3 * TILE - 2])


def test_a_nan_stays_one():
    q, k, v = drawn(300, 4, 3)
    k[0, 7, 0] = np.nan
    out = softmax_step.step(q, k, v, 300, 1.0)
    assert np.isnan(out[0]).all()
    assert np.isfinite(out[1]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_of_weight_0_changes_nothing(value):
    """In the first tile and in the last."""
    q, k, v = drawn(TILE + 300, 4, 19)
    q = abs(q)
    k[:, [7, TILE + 9]] = -1e6
    expected = softmax_step.step(q, k, v, TILE + 300, 1.0)
    v[:, [7, TILE + 9]] = value
    close(float)(softmax_step.step(q, k, v, TILE + 300, 1.0), expected)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_loses_its_weight_to_a_later_tile_changes_nothing(value):
    q, k, v = drawn(TILE + 300, 4, 3)
    k[:, TILE + 9] = 1e6 * q
    expected = softmax_step.step(q, k, v, TILE + 300, 1.0)
    v[:, 7] = value
    np.testing.assert_array_equal(softmax_step.step(q, k, v, TILE + 300, 1.0), expected)


def test_arrays_with_gaps():
    """As the heads of a projection are."""
    q, k, v = drawn(9, 4, 3)
    expected = by_loops(q, k, v, 9, 0.5)
    strided = (np.repeat(x, 2, axis=0)[::2] for x in (q, k, v))
    close(float)(softmax_step.step(*strided, 9, 0.5), expected)


def test_sums_of_rows():
    """The two steps of an inner product that the kernel is made of, on numbers whose sums are exact."""

    @njit
    def inner_products(out, a, x, count):
        store_totals(out, 0, 1, add_products(zero_block(out), a, 2, load(x, 0), count))

    for dtype in (np.float32, np.float64):
        width = lanes(np.empty(0, dtype))
        a = np.arange((ROWS + 3) * width, dtype=dtype).reshape(-1, width) % 7
        out, x = np.full((1, 2 * width), -1, dtype), np.arange(width, dtype=dtype)[None] % 5
        for count in (1, width - 1, width):
            inner_products(out, a, x, count)
            np.testing.assert_array_equal(out[0, 1 : 1 + ROWS], a[2 : 2 + ROWS, :count] @ x[0, :count])
            assert out[0, 0] == -1
            assert (out[0, 1 + ROWS :] == -1).all()


# --- Memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room_left", [False, True], ids=["full", "room left"])
def test_a_step_copies_nothing_of_the_cache(room_left):
    """The cache has 4 MiB; a step may have the scores, 1/16 of that, and the odd thing; a full one grows."""
    rng = np.random.default_rng(0)
    token = rng.standard_normal((3, 4, 16))
    rows = rng.standard_normal((2, 4, 4095, 16))
    start = softmax.init_state((4,), 16, 16, capacity=4096 if room_left else 4095, kernels=jit)
    state = softmax.forward(rows[0], *rows, causal=True, state=start, kernels=jit)[1].state
    warm, _ = softmax.step(*token, softmax.State(*state), kernels=jit)
    tracemalloc.start()
    try:
        out, after = softmax.step(*token, state, kernels=jit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (peak < rows.nbytes / 12) == room_left
    assert np.shares_memory(after.k, state.k) == room_left
    np.testing.assert_array_equal(out, warm)
