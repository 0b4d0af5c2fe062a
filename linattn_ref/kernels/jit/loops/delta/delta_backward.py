"""The backward pass of the delta product, one head: equations (16)-(22) of `linattn_ref.attention.chunked_delta`.

A loop over the chunks from the last to the first carries the gradient of the state, ``dS``, and leaves
``R``, which is ``d_v``, and ``d_k``. A loop from the first to the last carries the state, with the ``u`` that was kept
and this ``R``, and leaves ``d_q`` and ``d_e``. What is kept from row to row beyond the inputs and results is one state.

``R`` needs that state with its columns in the lanes, ``d_k`` with its rows: it is transposed once per chunk, which
takes far less than to carry it twice. ``d_q`` and ``d_e`` need the rows of ``S`` in the lanes alone, so the second loop
carries ``S^T``. The pairs' gradients ``dP`` and ``dA`` are made in both loops: to keep them would take ``2 CHUNK``
numbers per row.

The gate's gradient is (22), a sum over pairs of rows, and each loop has some of them: that from the end the pairs in
which the state after the chunk takes part, and with one gate for all channels those of two rows, of which it has ``P``
and ``A``; that from the start all others. One pair is that of both states. For it the first loop notes the gradient
of the state after each chunk: ``N C M / CHUNK`` numbers for each head that is at work, where there are gates.
"""

from typing import Any, NamedTuple

from linattn_ref.kernels.jit.loops.cache import kernel
from linattn_ref.kernels.jit.loops.delta import delta_chunk as shared
from linattn_ref.kernels.jit.loops.delta import delta_log_gate as of_gate
from linattn_ref.kernels.jit.loops.delta.delta_chunk import CHUNK, whole_rows
from linattn_ref.kernels.jit.loops.delta.delta_gradients import add_to_keys, add_to_rows
from linattn_ref.kernels.jit.loops.delta.delta_state import fade_and_add, scale_rows
from linattn_ref.kernels.jit.loops.heads import four_heads_of, head_of
from linattn_ref.kernels.jit.loops.inner import inner, once
from linattn_ref.kernels.jit.loops.simd.panel import new_rows, panels_of, product, rounded_up, write_back
from linattn_ref.kernels.jit.loops.simd.transposed import transpose
from linattn_ref.kernels.jit.loops.simd.triangle import add_terms, add_transposed, solve_up
from linattn_ref.kernels.jit.loops.simd.vector import broadcast, fma, lanes, load, store
from linattn_ref.kernels.jit.loops.simd.vector_block import ROWS, add_scaled, store_block, zero_block
from linattn_ref.kernels.jit.loops.views import columns_from, give_rows, hold, unowned


class Values(NamedTuple):
    """Memory for what a chunk's rows have of the values' width, and for the gradients of its pairs."""

    g: Any  # (CHUNK, M rounded up to whole Vectors), d_out
    u: Any
    r: Any  # d_v
    u_t: Any  # (M rounded up, lanes), U transposed, a panel of rows at a time
    d_p: Any  # (CHUNK, CHUNK)
    d_a: Any
    x: Any  # (CHUNK, lanes), one panel of results
    y: Any
    shares: Any  # (CHUNK, lanes), of the gate's gradient
    noted: Any  # (chunks or 1, M rounded up, width), the gradient of the state after each chunk, transposed


@once
def _new_values(m, like, chunks):
    width = rounded_up(m, lanes(like))
    rows, pairs = new_rows(3, CHUNK, width, like), new_rows(2, CHUNK, CHUNK, like)
    panels = new_rows(3, CHUNK, lanes(like), like)
    u_t = new_rows(1, width, lanes(like), like)[0]
    noted = new_rows(chunks, width, rounded_up(like.shape[1], lanes(like)), like)
    if noted.shape[2] > rounded_up(like.shape[1], lanes(like) // 2):  # columns that nothing is written to
        noted[:] = 0
    return Values(rows[0], rows[1], rows[2], u_t, pairs[0], pairs[1], panels[0], panels[1], panels[2], noted)


@kernel(
    table=(
        *("heads N C", "heads N C", "heads N 0|C", "heads N 0|1|C", "heads N M", "heads N M"),
        *("heads N C", "heads N C", "heads N 0|C", "heads N 0|1|C", "heads N M"),
    ),
    states="heads C M",
    d_states="heads C M",
)
def backward_heads(head, table, states, d_states):
    """Write all gradients of a head; ``d_states (heads, C, M)`` go from that of ``S_N`` to that of ``S_0``.

    ``table`` is `heads.table_of` ``q, k, erase, log_gate, d_out, u``, the gradients of the first four, and ``d_v``;
    what is None has no columns.
    """
    dtype = states.dtype
    q, k, e, log_gate = four_heads_of(table, 0, head, dtype)
    g, u, d_q, d_k = four_heads_of(table, 4, head, dtype)
    d_e, d_gate = head_of(table, 8, head, dtype), head_of(table, 9, head, dtype)
    d_v = head_of(table, 10, head, dtype)
    chunks = (len(k) + CHUNK - 1) // CHUNK if log_gate.shape[1] else 1
    room, state_t = shared.new_room(k.shape[1], k), states[head].T.copy()
    values = _new_values(u.shape[1], k, chunks)
    some_room, some_values = unowned(room), unowned(values)
    _from_the_end(some_room, some_values, q, k, e, log_gate, g, u, d_k, d_gate, d_v, d_states[head])
    _from_the_start(some_room, some_values, q, k, e, log_gate, g, u, d_v, d_q, d_e, d_gate, state_t)
    hold(room)
    hold(values)


# --- From the end: R, d_k -------------------------------------------------------------------------------------------


@once
def _from_the_end(room, values, q, k, e, log_gate, g, u, d_k, d_gate, d_v, d_state):
    (n, c), m, erases, per_channel = k.shape, u.shape[1], e.shape[1] > 0, log_gate.shape[1] > 1
    a = panels_of(d_state, lanes(d_state) // 2)
    for first in range((n - 1) // CHUNK * CHUNK, -1, -CHUNK):
        count = min(CHUNK, n - first)
        rows = rounded_up(count, ROWS)
        by_rows = values.noted[first // CHUNK if len(values.noted) > 1 else 0]  # dS'^T
        chunk = shared.load_chunk(room, q, k, e, log_gate, first, count)
        shared.make_pairs(chunk, rows, c, erases, per_channel)
        some_g, some_u = whole_rows(g, values.g, first, count, True), whole_rows(u, values.u, first, count, True)
        for p in range(len(a)):
            column = p * lanes(a)
            later = (q, k, e, log_gate, g, u, d_k, d_v), first - CHUNK, p, len(a)
            r = columns_from(values.r, column)
            _solve(r, columns_from(some_g, column), chunk, a[p], rows, c, erases, later)
            give_rows(d_v, first, count, r, column)
            transpose(by_rows[column : column + lanes(a)], a[p])
        of_gate.begin(values.shares, d_gate, first, count)
        _pairs_gradients(chunk, values, some_g, some_u, values.r, rows, m, erases, per_channel, d_gate, first, count)
        for column in range(0, c, lanes(a)):
            product(values.x, some_u[:rows, :m], columns_from(by_rows, column), False)
            of_gate.add_from_end(values.shares, d_gate, first, count, values.x, chunk, column)  # (22)
            add_to_keys(values.x, chunk, values.d_p, values.d_a, column, rows, erases, per_channel)  # (21)
            give_rows(d_k, first, count, values.x, column)
        of_gate.give_from_end(values.shares, d_gate, first, count, chunk)
        for p in range(len(a)):
            column = p * lanes(a)
            of_g, of_r = columns_from(some_g, column), columns_from(values.r, column)
            _step_back(a[p], chunk, of_g, of_r, values.x, rows, erases)
    write_back(d_state, a)


@inner
def _solve(r, g, chunk, a, rows, c, erases, later):
    """``(I + A)^T R = P^T G + (ratio_T * K) dS'`` (16)."""
    arrays, first, p, panels = later
    a_t = chunk.room.a.T
    for row in range(rows - ROWS, -1, -ROWS):
        shared.fetch(arrays, first + row, p, panels)
        there = add_terms(zero_block(r), chunk.k_until, row, a, 0, c)
        block = add_scaled(zero_block(r), chunk.until, row, 0, there)
        block = add_transposed(block, chunk.room.p, row, g, rows)
        if erases:
            block = add_terms(block, a_t, row, r, row + ROWS, rows)
            block = solve_up(block, chunk.room.a, row)
        store_block(r, row, block)


@inner
def _step_back(a, chunk, g, r, faded, rows, erases):
    """``dS = (c * Q)^T G - (c * E)^T R + c_T dS'`` (18)."""
    scale_rows(faded, g, chunk.since, rows)
    fade_and_add(a, chunk.room.whole, chunk.q_since[:rows], faded[:rows])
    if erases:
        scale_rows(faded, r, chunk.minus, rows)
        product(a, chunk.e_since[:rows, : len(a)].T, faded, True)


@inner
def _pairs_gradients(chunk, values, g, u, r, rows, m, erases, per_channel, d_gate, start, count):
    """``dP = tril(G U^T)`` and ``dA = -tril(R U^T, -1)`` (17), times ``ratio`` if there is one for all channels.

    Of one gate ``d_gate`` gets its share of (22), if rows ``start ... start + count`` of it are given.
    """
    for first in range(0, rows, lanes(u)):
        transpose(values.u_t, u[first : first + lanes(u)])
        d_p, d_a = columns_from(values.d_p, first), columns_from(values.d_a, first)
        for row in range(first, rows, ROWS):
            store_block(d_p, row, add_terms(zero_block(d_p), g, row, values.u_t, 0, m))
            if erases:
                store_block(d_a, row, add_terms(zero_block(d_a), r, row, values.u_t, 0, m))
        if d_gate.shape[1] == 1 and count:
            of_gate.add_pairs(d_gate, start, count, chunk, d_p, d_a, first, rows, erases)
        shared.fade_pairs(chunk, d_p, d_a, first, rows, erases, not per_channel)


# --- From the start: d_q, d_e ---------------------------------------------------------------------------------------


@once
def _from_the_start(room, values, q, k, e, log_gate, g, u, d_v, d_q, d_e, d_gate, state_t):
    n, m, erases, per_channel, gated = len(k), u.shape[1], e.shape[1] > 0, log_gate.shape[1] > 1, log_gate.shape[1] > 0
    s_t, nothing = panels_of(state_t, lanes(state_t) // 2), broadcast(k.dtype.type(0))
    for first in range(0, n, CHUNK):
        count = min(CHUNK, n - first)
        rows = rounded_up(count, ROWS)
        chunk = shared.load_chunk(room, q, k, e, log_gate, first, count)
        some_g, some_u = whole_rows(g, values.g, first, count, True), whole_rows(u, values.u, first, count, True)
        some_r = whole_rows(d_v, values.r, first, count, True)
        _pairs_gradients(chunk, values, some_g, some_u, some_r, rows, m, erases, per_channel, d_gate, 0, 0)
        values.shares[:] = 0
        noted, sums, through = values.noted[first // CHUNK if gated else 0], nothing, nothing
        for p in range(len(s_t)):
            column = p * lanes(s_t)
            for row in range(0, rows, ROWS):
                shared.fetch((q, k, e, log_gate, g, u, d_v, d_q, d_e), first + CHUNK + row, p, len(s_t))
                product(values.x[row : row + ROWS], some_g[row : row + ROWS, :m], s_t[p], False)
            if erases:
                product(values.y, some_r[:rows, :m], s_t[p], False)
            of_gate.add_from_start(values.shares, d_gate, count, values.x, values.y, chunk, column, erases)  # (22)
            add_to_rows(values, chunk, column, rows, erases, per_channel)
            give_rows(d_q, first, count, values.x, column)
            if erases:
                give_rows(d_e, first, count, values.y, column)
            through = _step_on(s_t[p], chunk, some_u, values.x, column, rows, m, columns_from(noted, column), gated)
            of_gate.give_channels(values.shares, d_gate, first, count, column, through)
            sums = sums + through
        of_gate.give_from_start(values.shares, d_gate, first, count, chunk, sums)
    write_back(state_t, s_t)


@inner
def _step_on(s_t, chunk, u, faded, column, rows, m, later, gated):
    """``S'^T = c_T S^T + U^T (ratio_T * K)``, the transpose of (15); and ``c_T * rowsum(dS' * S)``, of (22)."""
    whole, through = load(columns_from(chunk.room.whole, column), 0), broadcast(s_t.dtype.type(0))
    for t in range(m):
        s = load(s_t, t) * whole
        if gated:
            through = fma(s, load(later, t), through)
        store(s_t, t, s)
    scale_rows(faded, columns_from(chunk.k_until, column), chunk.until, rows)
    product(s_t, u[:rows, :m].T, faded, True)
    return through
