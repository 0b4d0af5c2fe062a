"""What both passes of the delta product need of a chunk: its rows as they meet the state, and as they meet each other.

The formulas are the reference's. Of each row ``i`` of a chunk, with the products ``c_i = g_1 ... g_i`` and ``ratio_Ti =
g_{i+1} ... g_T``, one number a channel, made by running over the rows forward and backward:

    (c * Q)_i,   -(c * E)_i,   (ratio_T * K)_i

and of each pair of rows ``P_ij`` and ``-A_ij``: signs are turned here, so that all that follows adds. The pairs have
``j`` in the lanes, so that they need the keys transposed, a panel for each ``lanes`` rows. With one gate for all
channels they are two matrix products times ``ratio``, which is one Vector that goes from row to row:

    ratio_i = g_i ratio_{i-1} in the lanes j < i,   1 in the others                 (lanes)

With a gate a channel it is the transposed keys that go from row to row and fade, as the state would:

    keys_i[c] = g_ic keys_{i-1}[c] in the lanes j < i                               (C, lanes)

No number is divided by a gate, so that one of 0 is like any other. A chunk that ends before ``CHUNK`` rows is filled up
with rows of 0 and gates of 1, which change nothing.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from linattn_ref.kernels.jit.transposed import transpose
from linattn_ref.kernels.jit.triangle import add_terms
from linattn_ref.kernels.jit.vector import broadcast, fma, keep_lanes, lanes, load, spread, store
from linattn_ref.kernels.jit.vector_block import ROWS, store_block, zero_block
from linattn_ref.kernels.jit.vector_exp import exp
from linattn_ref.kernels.jit.vector_prefetch import prefetch_early
from linattn_ref.kernels.jit.views import columns_from, load_row, store_row

CHUNK = 32  # rows, as many as a Vector has lanes at most: with more of them there are more pairs for each row


class Chunk(NamedTuple):
    """Room for the rows of a chunk; ``width`` is ``C`` rounded up to whole Vectors."""

    q: Any  # (CHUNK, width)
    k: Any
    e: Any
    gate: Any  # g
    q_since: Any  # c * Q
    e_since: Any  # -c * E
    k_until: Any  # ratio_T * K
    whole: Any  # c_T, in the first row
    keys: Any  # (width, lanes), transposed
    p: Any  # (CHUNK, CHUNK), P; rows below a Block's own that it does not reach are not written
    a: Any  # -A


@njit
def new_chunk(c, like):
    width = rounded_up(c, lanes(like))
    rows, pairs = new_rows(8, CHUNK, width, like), new_rows(2, CHUNK, CHUNK, like)
    keys = new_rows(1, width, lanes(like), like)[0]
    return Chunk(rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], rows[6], rows[7], keys, pairs[0], pairs[1])


@njit
def new_rows(count, rows, width, like):
    """Room for ``count`` arrays ``(rows, width)``, aligned to cache lines."""
    size = count * rows * width
    memory = np.empty(size + 64, like.dtype)
    skip = (64 - memory.ctypes.data % 64) % 64 // memory.itemsize
    return memory[skip : skip + size].reshape(count, rows, width)


@njit
def rounded_up(n, multiple):
    return (n + multiple - 1) // multiple * multiple


# --- Rows -----------------------------------------------------------------------------------------------------------


@njit
def load_chunk(chunk, q, k, e, log_gate, first, count):
    """Rows ``first .. first + count`` of a head: the arrays themselves, and all products of gates."""
    fill(chunk.q, q, first, count)
    fill(chunk.k, k, first, count)
    if e.shape[1]:
        fill(chunk.e, e, first, count)
    for column in range(0, chunk.k.shape[1], lanes(chunk.k)):
        _fill_gates(columns_from(chunk.gate, column), log_gate, first, count, column)
        _fade(chunk, e.shape[1] > 0, column)


@njit
def fill(rows, x, first, count):
    """``rows[:count] = x[first : first + count]``, and 0 in all rows and columns beyond."""
    zero = broadcast(rows.dtype.type(0))
    for column in range(0, rows.shape[1], lanes(rows)):
        target, source = columns_from(rows, column), columns_from(x, column)
        for i in range(count):
            store(target, i, load_row(source, first + i))
        for i in range(count, len(rows)):
            store(target, i, zero)


@njit
def give_rows(x, first, count, rows, column):
    """``x[first : first + count, column:] = rows[:count]``, for rows one Vector wide."""
    target = columns_from(x, column)
    for i in range(count):
        store_row(target, first + i, load(rows, i))


@njit
def fetch(rows, row, share, shares):
    """Have ``ROWS`` rows from ``row`` on of some arrays come near, or of each the ``share``-th part of its columns.

    The rows of the next chunk are on their way while this one is computed. There may be no such rows.
    """
    for x in rows:
        columns = rounded_up((x.shape[1] + shares - 1) // shares, lanes(x) // 2)
        for column in range(share * columns, min((share + 1) * columns, x.shape[1]), lanes(x) // 2):
            for i in range(row, row + ROWS):
                prefetch_early(x, i, column)


@njit
def _fill_gates(gate, log_gate, first, count, column):
    one = broadcast(gate.dtype.type(1))
    for i in range(len(gate)):
        g = one
        if i < count and log_gate.shape[1] == 1:
            g = exp(spread(log_gate, first + i, 0))
        elif i < count and log_gate.shape[1] > 1:
            g = exp(load_row(columns_from(log_gate, column), first + i))
        store(gate, i, g)


@njit
def _fade(chunk, erases, column):
    """``c * Q, -c * E, ratio_T * K`` and ``c_T`` of one Vector of channels."""
    gate, since, until = (
        columns_from(chunk.gate, column),
        broadcast(chunk.k.dtype.type(1)),
        broadcast(chunk.k.dtype.type(1)),
    )
    zero = broadcast(chunk.k.dtype.type(0))
    q, q_since = columns_from(chunk.q, column), columns_from(chunk.q_since, column)
    e, e_since = columns_from(chunk.e, column), columns_from(chunk.e_since, column)
    k, k_until = columns_from(chunk.k, column), columns_from(chunk.k_until, column)
    for i in range(CHUNK):
        since = since * load(gate, i)
        store(q_since, i, since * load(q, i))
        if erases:
            store(e_since, i, zero - since * load(e, i))
    store(columns_from(chunk.whole, column), 0, since)
    for i in range(CHUNK - 1, -1, -1):
        store(k_until, i, until * load(k, i))
        until = until * load(gate, i)


# --- Pairs of rows --------------------------------------------------------------------------------------------------


@njit
def make_pairs(chunk, rows, c, erases, per_channel):
    """``P`` and ``-A`` of the first ``rows`` rows, ``C`` channels."""
    for first in range(0, rows, lanes(chunk.k)):
        transpose(chunk.keys, chunk.k[first : first + lanes(chunk.k)])
        p, a = columns_from(chunk.p, first), columns_from(chunk.a, first)
        if per_channel:
            _pairs_by_channel(chunk, p, a, first, rows, c, erases)
        else:
            _pairs_by_product(chunk, p, a, first, rows, c, erases)


@njit
def _pairs_by_product(chunk, p, a, first, rows, c, erases):
    for row in range(first, rows, ROWS):
        store_block(p, row, add_terms(zero_block(p), chunk.q, row, chunk.keys, 0, c))
        if erases:
            store_block(a, row, add_terms(zero_block(a), chunk.e, row, chunk.keys, 0, c))
    fade_pairs(chunk, p, a, first, rows, erases, True)


@njit
def fade_pairs(chunk, p, a, first, rows, erases, by_ratio):
    """``p_ij = ratio_ij p_ij`` for ``j <= i``, ``a_ij = -ratio_ij a_ij`` for ``j < i``, else 0; ``j`` in the lanes."""
    one, zero = p.dtype.type(1), p.dtype.type(0)
    ratio = broadcast(one)
    for i in range(first, rows):
        if by_ratio:
            ratio = ratio * keep_lanes(spread(chunk.gate, i, 0), 0, i - first, one)
        store(p, i, keep_lanes(load(p, i) * ratio, 0, i - first + 1, zero))
        if erases:
            store(a, i, keep_lanes(broadcast(zero) - load(a, i) * ratio, 0, i - first, zero))


@njit
def _pairs_by_channel(chunk, p, a, first, rows, c, erases):
    one, zero = p.dtype.type(1), p.dtype.type(0)
    nothing = broadcast(zero)
    for i in range(first, rows, 2):
        p0 = p1 = a0 = a1 = nothing
        for t in range(c):
            x = load(chunk.keys, t) * keep_lanes(spread(chunk.gate, i, t), 0, i - first, one)
            p0 = fma(spread(chunk.q, i, t), x, p0)
            if erases:
                a0 = fma(spread(chunk.e, i, t), x, a0)
            x = x * keep_lanes(spread(chunk.gate, i + 1, t), 0, i + 1 - first, one)
            p1 = fma(spread(chunk.q, i + 1, t), x, p1)
            if erases:
                a1 = fma(spread(chunk.e, i + 1, t), x, a1)
            store(chunk.keys, t, x)
        store(p, i, keep_lanes(p0, 0, i - first + 1, zero))
        store(p, i + 1, keep_lanes(p1, 0, i - first + 2, zero))
        if erases:
            store(a, i, keep_lanes(nothing - a0, 0, i - first, zero))
            store(a, i + 1, keep_lanes(nothing - a1, 0, i - first + 1, zero))
