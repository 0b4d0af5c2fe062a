"""What both passes of the delta product need of a chunk: its rows as they meet the state, and as they meet each other.

The formulas are the page's. Rows ``i`` of a chunk meet the state through the products ``c_i = g_1 ... g_i`` and
``ratio_Ti = g_{i+1} ... g_T``, which are made by running over the rows forward and backward:

    c * Q,   c * E,   ratio_T * K                                                   (CHUNK, C)

With a gate per channel these are arrays of their own. One gate for all channels is one per row: it multiplies what a
row finds in the state, ``c_i (q_i S)``, or what it sends there, ``k_i (ratio_Ti u_i)``, and queries, keys and ``E`` are
read where the caller has them, if there they follow one another. That matters: the rows of a chunk and the state are
more than a first-level cache holds, so that each copy less is time saved (a tenth of both passes).

Of each pair of rows there are ``P_ij`` and ``-A_ij``: signs are turned here, so that all that follows adds. They have
``j`` in the lanes, so that they need the keys transposed, a panel for each ``lanes`` rows. With one gate for all
channels they are two matrix products times ``ratio``, which is one Vector that goes from row to row:

    ratio_i = g_i ratio_{i-1} in the lanes j < i,   1 in the others                 (lanes)

With a gate per channel it is the transposed keys that go from row to row and fade, as the state would:

    keys_i[c] = g_ic keys_{i-1}[c] in the lanes j < i                               (C, lanes)

No number is divided by a gate, so that one of 0 is like any other. A chunk that ends before ``CHUNK`` rows is filled up
with rows of 0 and gates of 1, which change nothing.
"""

from typing import Any, NamedTuple

from linattn_ref.kernels.jit.loops.inner import inner
from linattn_ref.kernels.jit.loops.simd.panel import new_rows, rounded_up
from linattn_ref.kernels.jit.loops.simd.transposed import transpose
from linattn_ref.kernels.jit.loops.simd.triangle import add_terms
from linattn_ref.kernels.jit.loops.simd.vector import broadcast, fma, keep, lanes, load, prefetch_early, spread, store
from linattn_ref.kernels.jit.loops.simd.vector_block import ROWS, store_block, zero_block
from linattn_ref.kernels.jit.loops.simd.vector_exp import exp
from linattn_ref.kernels.jit.loops.views import columns_from, load_row, rows_apart

CHUNK = 32  # rows, as many as a Vector has lanes at most: with more of them there are more pairs for each row


class Room(NamedTuple):
    """Memory for a chunk; ``width`` is ``C`` rounded up to whole Vectors."""

    rows: Any  # (6, CHUNK, width)
    gate: Any  # (CHUNK, width), g; of one for all channels only the first Vector
    factors: Any  # (5, CHUNK, 1)
    whole: Any  # (1, width), c_T
    keys: Any  # (width, lanes), transposed
    p: Any  # (CHUNK, CHUNK), P; rows below a Block's own that it does not reach are not written
    a: Any  # -A


class Chunk(NamedTuple):
    """The rows of a chunk and the products of its gates; its pairs are in the room."""

    room: Room
    q: Any  # (CHUNK, C or width)
    k: Any
    e: Any
    q_since: Any  # c * Q, or Q
    e_since: Any  # c * E, or E
    k_until: Any  # ratio_T * K, or K
    since: Any  # (CHUNK, 1), 1, or c_i
    minus: Any  # -1, or -c_i; times beta_i
    until: Any  # 1, or ratio_Ti
    beta: Any  # (CHUNK, 1), 1, or beta_i of rows whose E is K


@inner
def new_room(c, like):
    width = rounded_up(c, lanes(like))
    rows, factors, pairs = new_rows(7, CHUNK, width, like), new_rows(5, CHUNK, 1, like), new_rows(2, CHUNK, CHUNK, like)
    factors[:], factors[2] = 1, -1
    whole, keys = new_rows(1, 1, width, like)[0], new_rows(1, width, lanes(like), like)[0]
    return Room(rows[:6], rows[6], factors, whole, keys, pairs[0], pairs[1])


# --- Rows -----------------------------------------------------------------------------------------------------------


@inner(forceinline=True)
def load_chunk(room, q, k, e, log_gate, first, count, beta=None):
    """Rows ``first .. first + count`` of a head and all products of their gates; pairs are not made yet.

    With ``beta`` the caller passes ``k`` for ``e`` as well, and ``E`` is ``beta * K``.
    """
    per_channel = log_gate.shape[1] > 1
    some_q = whole_rows(q, room.rows[0], first, count, not per_channel)
    some_k = whole_rows(k, room.rows[1], first, count, not per_channel)
    some_e = whole_rows(e, room.rows[2], first, count, not per_channel)
    q_since, e_since, k_until = some_q, some_e, some_k
    if per_channel:
        q_since, e_since, k_until = _all_rows(room.rows[3]), _all_rows(room.rows[4]), _all_rows(room.rows[5])
    since, until, minus, betas, _ = room.factors
    if beta is not None:
        _fill_beta(betas, minus, beta, first, count)
    chunk = Chunk(room, some_q, some_k, some_e, q_since, e_since, k_until, since, minus, until, betas)
    if per_channel:
        for column in range(0, room.gate.shape[1], lanes(k)):
            _fill_gates(columns_from(room.gate, column), log_gate, first, count, column)
            _fade_by_channel(chunk, e.shape[1] > 0, column)
    else:
        _fill_gates(columns_from(room.gate, 0), log_gate, first, count, 0)
        _fade(chunk)
    return chunk


@inner(forceinline=True)
def whole_rows(x, room, first, count, in_place):
    """Rows of ``x`` where they lie, if they are whole and follow one another; else a copy, filled up with zeros."""
    follow = x.strides[0] == x.shape[1] * x.itemsize and x.shape[1] == room.shape[1]
    if in_place and follow and count == CHUNK:
        return rows_apart(x.ctypes.data + first * x.strides[0], CHUNK, x.shape[1], x.strides[0], x.dtype)
    if x.shape[1]:
        fill(room, x, first, count)
    return _all_rows(room)


@inner(forceinline=True)
def _all_rows(room):
    """The same, as the type of array that a part of the inputs has."""
    return rows_apart(room.ctypes.data, room.shape[0], room.shape[1], room.strides[0], room.dtype)


@inner
def fill(rows, x, first, count):
    """``rows[:count] = x[first : first + count]``, and 0 in all rows and columns beyond."""
    zero = broadcast(rows.dtype.type(0))
    for column in range(0, rows.shape[1], lanes(rows)):
        target, source = columns_from(rows, column), columns_from(x, column)
        for i in range(count):
            store(target, i, load_row(source, first + i))
        for i in range(count, len(rows)):
            store(target, i, zero)


@inner(forceinline=True)
def fetch(rows, row, share, shares):
    """Have ``ROWS`` rows from ``row`` on of some arrays come near, or of each the ``share``-th part of its columns.

    The rows of the next chunk are on their way while this one is computed. There may be no such rows.
    """
    for x in rows:
        columns = rounded_up((x.shape[1] + shares - 1) // shares, lanes(x) // 2)
        for column in range(share * columns, min((share + 1) * columns, x.shape[1]), lanes(x) // 2):
            for i in range(row, row + ROWS):
                prefetch_early(x, i, column)


@inner(forceinline=True)
def _fill_gates(gate, log_gate, first, count, column):
    one = broadcast(gate.dtype.type(1))
    for i in range(len(gate)):
        g = one
        if i < count and log_gate.shape[1] == 1:
            g = exp(spread(log_gate, first + i, 0))
        elif i < count and log_gate.shape[1] > 1:
            g = exp(load_row(columns_from(log_gate, column), first + i))
        store(gate, i, g)


@inner(forceinline=True)
def _fill_beta(betas, minus, beta, first, count):
    if beta.shape[1]:
        for i in range(CHUNK):
            betas[i, 0] = beta[first + i, 0] if i < count else beta.dtype.type(0)
            minus[i, 0] = -betas[i, 0]


@inner(forceinline=True)
def _fade(chunk):
    """The factors ``c_i, ratio_Ti`` and ``c_T``, of one gate for all channels."""
    since = until = chunk.k.dtype.type(1)
    for i in range(CHUNK):
        since *= chunk.room.gate[i, 0]
        chunk.since[i, 0], chunk.minus[i, 0] = since, -since * chunk.beta[i, 0]
    for i in range(CHUNK - 1, -1, -1):
        chunk.until[i, 0] = until
        until *= chunk.room.gate[i, 0]
    chunk.room.whole[:] = since


@inner
def _fade_by_channel(chunk, erases, column):
    """``c * Q, c * E, ratio_T * K`` and ``c_T`` of one Vector of channels."""
    gate, one = columns_from(chunk.room.gate, column), broadcast(chunk.k.dtype.type(1))
    q, q_since = columns_from(chunk.q, column), columns_from(chunk.q_since, column)
    e, e_since = columns_from(chunk.e, column), columns_from(chunk.e_since, column)
    k, k_until = columns_from(chunk.k, column), columns_from(chunk.k_until, column)
    since = until = one
    for i in range(CHUNK):
        since = since * load(gate, i)
        store(q_since, i, since * load(q, i))
        if erases:
            store(e_since, i, since * load(e, i))
    store(columns_from(chunk.room.whole, column), 0, since)
    for i in range(CHUNK - 1, -1, -1):
        store(k_until, i, until * load(k, i))
        until = until * load(gate, i)


# --- Pairs of rows --------------------------------------------------------------------------------------------------


@inner(forceinline=True)
def make_pairs(chunk, rows, c, erases, per_channel):
    """``P`` and ``-A`` of the first ``rows`` rows, ``C`` channels."""
    for first in range(0, rows, lanes(chunk.k)):
        transpose(chunk.room.keys, chunk.k[first : first + lanes(chunk.k)])
        p, a = columns_from(chunk.room.p, first), columns_from(chunk.room.a, first)
        if per_channel:
            _pairs_by_channel(chunk, p, a, first, rows, c, erases)
        else:
            _pairs_by_product(chunk, p, a, first, rows, c, erases)


@inner(forceinline=True)
def _pairs_by_product(chunk, p, a, first, rows, c, erases):
    for row in range(first, rows, ROWS):
        store_block(p, row, add_terms(zero_block(p), chunk.q, row, chunk.room.keys, 0, c))
        if erases:
            store_block(a, row, add_terms(zero_block(a), chunk.e, row, chunk.room.keys, 0, c))
    fade_pairs(chunk, p, a, first, rows, erases, True)


@inner(forceinline=True)
def fade_pairs(chunk, p, a, first, rows, erases, by_ratio):
    """``p_ij = ratio_ij p_ij`` for ``j <= i``, ``a_ij = -beta_i ratio_ij a_ij`` for ``j < i``, else 0 (lane: ``j``)."""
    one, zero = p.dtype.type(1), p.dtype.type(0)
    ratio = broadcast(one)
    for i in range(first, rows):
        if by_ratio:
            ratio = ratio * keep(spread(chunk.room.gate, i, 0), 0, i - first, one)
        store(p, i, keep(load(p, i) * ratio, 0, i - first + 1, zero))
        if erases:
            some_a = load(a, i) * (ratio * spread(chunk.beta, i, 0))
            store(a, i, keep(broadcast(zero) - some_a, 0, i - first, zero))


@inner
def _pairs_by_channel(chunk, p, a, first, rows, c, erases):
    one, zero = p.dtype.type(1), p.dtype.type(0)
    nothing = broadcast(zero)
    for i in range(first, rows, 2):
        p0 = p1 = a0 = a1 = nothing
        for t in range(c):
            x = load(chunk.room.keys, t) * keep(spread(chunk.room.gate, i, t), 0, i - first, one)
            p0 = fma(spread(chunk.q, i, t), x, p0)
            if erases:
                a0 = fma(spread(chunk.e, i, t), x, a0)
            x = x * keep(spread(chunk.room.gate, i + 1, t), 0, i + 1 - first, one)
            p1 = fma(spread(chunk.q, i + 1, t), x, p1)
            if erases:
                a1 = fma(spread(chunk.e, i + 1, t), x, a1)
            store(chunk.room.keys, t, x)
        store(p, i, keep(p0, 0, i - first + 1, zero))
        store(p, i + 1, keep(p1, 0, i - first + 2, zero))
        if erases:
            store(a, i, keep(nothing - a0 * spread(chunk.beta, i, 0), 0, i - first, zero))
            store(a, i + 1, keep(nothing - a1 * spread(chunk.beta, i + 1, 0), 0, i - first + 1, zero))
