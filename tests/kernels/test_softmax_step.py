"""One query against a cache: the numbers of the formula for any size, nothing read after the length, nothing copied."""

import tracemalloc
from functools import partial

import numpy as np
import pytest
from cases import each_compiled_dtype
from numba import njit

from linattn_ref.attention import softmax
from linattn_ref.attention.softmax_cache import step_of
from linattn_ref.kernels import jit, reference
from linattn_ref.kernels.jit.row_sums import add_products, store_totals
from linattn_ref.kernels.jit.softmax_step import TILE
from linattn_ref.kernels.jit.vector import lanes, load
from linattn_ref.kernels.jit.vector_block import ROWS, zero_block

ROOMS = pytest.mark.parametrize("room", [reference, jit], ids=["reference", "jit"])
LENGTHS = (1, ROWS - 1, ROWS, ROWS + 1, 31, 33, TILE - 1, TILE, TILE + 1, 2 * TILE + ROWS + 3)


def drawn(length, d, m, leading=(2,), dtype=np.float64, room_left=3):
    """A query and a cache, in whose free rows stands what nobody may read."""
    rng = np.random.default_rng(length)
    q = rng.standard_normal((*leading, d)).astype(dtype)
    k, v = (rng.standard_normal((*leading, length + room_left, width)).astype(dtype) for width in (d, m))
    k[..., length:, :] = v[..., length:, :] = np.nan
    return q, k, v


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
@ROOMS
def test_any_length(room, length, dtype):
    q, k, v = drawn(length, 5, 3, dtype=dtype)
    out = room.softmax.step(q, k, v, length, 0.5)
    assert out.dtype == dtype
    close(dtype)(out, by_loops(q, k, v, length, 0.5))


@each_compiled_dtype
@pytest.mark.parametrize(("d", "m"), [(1, 1), (16, 33), (32, 32), (64, 16), (70, 130), (7, 64)])
@ROOMS
def test_any_width(room, d, m, dtype):
    q, k, v = drawn(19, d, m, dtype=dtype)
    close(dtype)(room.softmax.step(q, k, v, 19, 0.3), by_loops(q, k, v, 19, 0.3))


@pytest.mark.parametrize("leading", [(), (1,), (2, 1, 3)])
@ROOMS
def test_any_leading_axes(room, leading):
    q, k, v = drawn(9, 4, 3, leading)
    close(float)(room.softmax.step(q, k, v, 9, 0.5), by_loops(q, k, v, 9, 0.5))


@ROOMS
def test_a_later_maximum_and_scores_that_overflow(room):
    """The largest score is in the last tile, and exp of it is inf."""
    q, k, v = drawn(3 * TILE, 4, 3)
    k[:, 3 * TILE - 2] = 1e3 * q
    out = room.softmax.step(q, k, v, 3 * TILE, 1.0)
    close(float)(out, v[:, 3 * TILE - 2])


@ROOMS
def test_a_nan_stays_one(room):
    q, k, v = drawn(300, 4, 3)
    k[0, 7, 0] = np.nan
    out = room.softmax.step(q, k, v, 300, 1.0)
    assert np.isnan(out[0]).all()
    assert np.isfinite(out[1]).all()


@ROOMS
def test_arrays_with_gaps(room):
    """As the heads of a projection are."""
    q, k, v = drawn(9, 4, 3)
    expected = by_loops(q, k, v, 9, 0.5)
    strided = (np.repeat(x, 2, axis=0)[::2] for x in (q, k, v))
    close(float)(room.softmax.step(*strided, 9, 0.5), expected)


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


@pytest.mark.parametrize("capacity", [4096, 6000], ids=["full", "room left"])
@ROOMS
def test_a_step_copies_nothing_of_the_cache(room, capacity):
    """The cache has 4 MiB; a step may have the scores, 1/16 of that, and the odd thing."""
    rng = np.random.default_rng(0)
    token = rng.standard_normal((3, 4, 16))
    rows = rng.standard_normal((2, 4, 4095, 16))
    state = softmax.append(*rows, softmax.init_state((4,), 16, 16, capacity=capacity))
    warm, _ = softmax.step(*token, softmax.State(*state[:3]), kernels=room)
    tracemalloc.start()
    try:
        out, after = softmax.step(*token, state, kernels=room)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < rows.nbytes / 12
    assert after.k is state.k
    np.testing.assert_array_equal(out, warm)


# --- Rooms of one's own ---------------------------------------------------------------------------------------------


class Room:
    """With some of the functions of the reference, and a list of which were called."""

    def __init__(self, *functions):
        self.called = []
        for name in functions:
            setattr(self, name, partial(self._note, name))
        self.softmax = self

    def _note(self, name, *args):
        self.called.append(name)
        return getattr(reference.softmax, name)(*args)


@pytest.mark.parametrize(
    ("functions", "stepped_by"), [(("forward", "backward"), "forward"), (("forward", "backward", "step"), "step")]
)
def test_who_makes_a_step_in_a_room_of_ones_own(functions, stepped_by):
    room, state = Room(*functions), softmax.init_state((2,), 4, 3, capacity=3)
    q, k, v = (x[:, 0].copy() for x in np.split(np.random.default_rng(0).standard_normal((2, 1, 11)), [4, 8], axis=-1))
    expected, _ = softmax.step(q, k, v, state)
    out, _ = softmax.step(q, k, v, softmax.init_state((2,), 4, 3, capacity=3), kernels=room)
    bound = softmax.bind_step(q, k, v, softmax.init_state((2,), 4, 3, capacity=3), kernels=room)
    bound.run()
    assert room.called == [stepped_by] * 2
    close(float)(out, expected)
    close(float)(bound.out_t, expected)


@pytest.mark.parametrize("room", [reference, jit])
def test_a_room_of_the_package_has_one(room):
    """No way around through ``forward``, which is made for many queries."""
    assert step_of(room.softmax) is room.softmax.step
