"""The forward pass of the delta product, one head: equations (13)-(15) of the reference, a chunk at a time.

The columns of ``S``, ``V``, ``U`` and ``out`` are independent of one another once the pairs are there. They are cut
into panels, one Vector wide, and for each panel a Block of rows at a time stays in registers::

    block  = V rows - c * (E S)                 C terms
    block -= A U, whole Blocks above, then row by row       (13)
    block  = c * (Q S) + P U                    C terms, and those up to the Block's own rows   (14)

then ``S`` is brought to the end of the chunk, a Block of its rows at a time (15).
"""

from numba import njit, prange

from linattn_ref.kernels.jit.cache import kernel
from linattn_ref.kernels.jit.causal_scan import write_back
from linattn_ref.kernels.jit.delta_chunk import (
    CHUNK,
    fetch,
    give_rows,
    load_chunk,
    make_pairs,
    new_room,
    rounded_up,
)
from linattn_ref.kernels.jit.delta_state import fade_and_add, scale_rows, whole_panels
from linattn_ref.kernels.jit.heads import head_of
from linattn_ref.kernels.jit.panel import new_panel
from linattn_ref.kernels.jit.triangle import add_terms, solve_down
from linattn_ref.kernels.jit.vector import broadcast, lanes, store
from linattn_ref.kernels.jit.vector_block import ROWS, add_scaled, load_block, store_block, zero_block
from linattn_ref.kernels.jit.views import columns_from, load_row


@kernel
def forward_heads(table, states):
    """Write ``out`` and, where there is ``erase``, ``u``; ``states (heads, C, M)`` go from ``S_0`` to ``S_N``.

    ``table`` is `heads.table_of` ``q, k, v, erase, log_gate, out, u``; what is None has no columns.
    """
    dtype = states.dtype
    for head in prange(len(states)):
        _forward(
            head_of(table, 0, head, dtype),
            head_of(table, 1, head, dtype),
            head_of(table, 2, head, dtype),
            head_of(table, 3, head, dtype),
            head_of(table, 4, head, dtype),
            head_of(table, 5, head, dtype),
            head_of(table, 6, head, dtype),
            states[head],
        )


@njit
def _forward(q, k, v, e, log_gate, out, u, state):
    (n, c), erases, per_channel = k.shape, e.shape[1] > 0, log_gate.shape[1] > 1
    room, s = new_room(c, state), whole_panels(state)
    some_u, some_out, faded = new_panel(CHUNK, state), new_panel(CHUNK, state), new_panel(CHUNK, state)
    for first in range(0, n, CHUNK):
        count = min(CHUNK, n - first)
        rows = rounded_up(count, ROWS)
        chunk = load_chunk(room, q, k, e, log_gate, first, count)
        make_pairs(chunk, rows, c, erases, per_channel)
        for p in range(len(s)):
            column = p * lanes(s)
            _load_panel(some_u, v, first, count, column)
            if erases:
                _solve(some_u, chunk, s[p], rows, c)
                give_rows(u, first, count, some_u, column)
            later = (q, k, e, v, out, u), first + CHUNK, p, len(s)
            _read(some_out, chunk, s[p], some_u, rows, c, later)
            give_rows(out, first, count, some_out, column)
            _advance(s[p], chunk, some_u, faded, rows)
    write_back(state, s)


@njit
def _load_panel(panel, x, first, count, column):
    columns = columns_from(x, column)
    for i in range(count):
        store(panel, i, load_row(columns, first + i))
    for i in range(count, CHUNK):
        store(panel, i, broadcast(panel.dtype.type(0)))


@njit
def _solve(u, chunk, s, rows, c):
    """``(I + A) U = V - (c * E) S``, ``V`` in and ``U`` out (13)."""
    for row in range(0, rows, ROWS):
        there = add_terms(zero_block(u), chunk.e_since, row, s, 0, c)
        block = add_scaled(load_block(u, row), there, chunk.minus, row)
        block = add_terms(block, chunk.a, row, u, 0, row)
        store_block(u, row, solve_down(block, chunk.a, row))


@njit
def _read(out, chunk, s, u, rows, c, later):
    """``out = (c * Q) S + P U`` (14)."""
    arrays, first, p, panels = later
    for row in range(0, rows, ROWS):
        fetch(arrays, first + row, p, panels)
        there = add_terms(zero_block(out), chunk.q_since, row, s, 0, c)
        block = add_scaled(zero_block(out), there, chunk.since, row)
        store_block(out, row, add_terms(block, chunk.p, row, u, 0, row + ROWS))


@njit
def _advance(s, chunk, u, faded, rows):
    """``S' = c_T S + (ratio_T * K)^T U`` (15)."""
    scale_rows(faded, u, chunk.until, rows)
    fade_and_add(s, chunk.whole, chunk.k_until[:rows], faded[:rows])
