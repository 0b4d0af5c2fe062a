"""The forward pass of the delta product, one head: (13)-(15) of `linattn_ref.attention.chunked_delta`.

The columns of ``S``, ``V``, ``U`` and ``out`` are independent of one another once the pairs are there. They are cut
into panels, one Vector wide, and for each panel a Block of rows at a time stays in registers::

    block  = V rows - c * (E S)                 C terms
    block -= A U, whole Blocks above, then row by row       (13)
    block  = c * (Q S) + P U                    C terms, and those up to the Block's own rows   (14)

then ``S`` is brought to the end of the chunk, a Block of its rows at a time (15).

What the kernel does besides multiply-adds counts: it was a third of the time while panels of ``V``, ``U`` and ``out``
were copied, the parts of a chunk were arguments of functions, and the holders of each array were counted (`unowned`).
So panels are read and written where the caller has them, if they are whole, and all of it is compiled as one function.
What is fetched ahead is worth more than all this: without it the pass would take half as long again at 4096 rows.
"""

from linattn_ref.kernels.jit.loops.cache import kernel
from linattn_ref.kernels.jit.loops.delta import delta_chunk as shared
from linattn_ref.kernels.jit.loops.delta.delta_chunk import CHUNK, new_room
from linattn_ref.kernels.jit.loops.delta.delta_state import fade_and_add, scale_rows
from linattn_ref.kernels.jit.loops.heads import four_heads_of
from linattn_ref.kernels.jit.loops.inner import inner, once
from linattn_ref.kernels.jit.loops.simd.panel import new_rows, panels_of, rounded_up, write_back
from linattn_ref.kernels.jit.loops.simd.triangle import add_terms, add_triangle, solve_down
from linattn_ref.kernels.jit.loops.simd.vector import lanes
from linattn_ref.kernels.jit.loops.simd.vector_block import ROWS, add_scaled, load_block, store_block, zero_block
from linattn_ref.kernels.jit.loops.views import copy_columns, give_rows, hold, rows_apart, unowned


@kernel(
    table=(
        *("heads N C", "heads N C", "heads N M", "heads N 0|C", "heads N 0|1", "heads N 0|1|C"),
        *("heads N M", "heads N 0|M"),
    ),
    states="heads C M",
)
def forward_heads(head, table, states, scale):
    """Write ``out`` of a head and, with ``erase``, ``u``; ``states (heads, C, M)`` go from ``S_0`` to ``S_N``.

    ``table`` is `heads.table_of` ``q, k, v, erase, beta, log_gate, out, u``; what is None has no columns. With ``beta``
    values are ``beta v``, and ``erase``, for which there is ``k`` then, is ``beta k``. ``out`` is multiplied by
    ``scale``: nothing of that is an array of its own.
    """
    dtype = states.dtype
    state = states[head]
    room, panels = new_room(len(state), state), new_rows(4, CHUNK, lanes(state), state)
    s = panels_of(state, lanes(state) // 2)
    room.factors[4] = dtype.type(scale)
    q, k, v, e = four_heads_of(table, 0, head, dtype)
    beta, log_gate, out, u = four_heads_of(table, 4, head, dtype)
    _forward(unowned(room), unowned(panels), unowned(s), q, k, v, e, beta, log_gate, out, u)
    hold(room)
    hold(panels)
    write_back(state, s)


@once
def _forward(room, panels, s, q, k, v, e, beta, log_gate, out, u):
    (n, c), erases, per_channel = k.shape, e.shape[1] > 0, log_gate.shape[1] > 1
    faded = panels[3]
    for first in range(0, n, CHUNK):
        count = min(CHUNK, n - first)
        rows = rounded_up(count, ROWS)
        chunk = shared.load_chunk(room, q, k, e, log_gate, first, count, beta)
        shared.make_pairs(chunk, rows, c, erases, per_channel)
        for p in range(len(s)):
            column = p * lanes(s)
            whole = count == CHUNK and column + lanes(s) <= v.shape[1]
            some_v = some_u = _panel_of(v, panels[0], first, column, whole)
            if not whole:
                copy_columns(some_v, v[first : first + count], column)
                some_v[count:] = 0
            if erases:
                some_u = _panel_of(u, panels[1], first, column, whole)
                _solve(some_u, some_v, chunk, s[p], rows, c)
                if not whole:
                    give_rows(u, first, count, some_u, column)
            some_out = _panel_of(out, panels[2], first, column, whole)
            later = (q, k, e, v, out, u), first + CHUNK, p, len(s)
            _read(some_out, chunk, s[p], some_u, rows, c, room.factors[4], later)
            if not whole:
                give_rows(out, first, count, some_out, column)
            scale_rows(faded, some_u, chunk.until, rows)
            fade_and_add(s[p], chunk.room.whole, chunk.k_until[:rows], faded[:rows])  # (15)


@inner(forceinline=True)
def _panel_of(x, room, first, column, whole):
    """Rows and columns of ``x`` where they lie, or room for them."""
    if whole:
        address = x.ctypes.data + first * x.strides[0] + column * x.itemsize
        return rows_apart(address, CHUNK, lanes(x), x.strides[0], x.dtype)
    return rows_apart(room.ctypes.data, CHUNK, lanes(x), room.strides[0], x.dtype)


@inner(forceinline=True)
def _solve(u, v, chunk, s, rows, c):
    """``(I + A) U = V - (c * E) S``, ``V`` in, times ``beta``, and ``U`` out (13)."""
    for row in range(0, rows, ROWS):
        there = add_terms(zero_block(u), chunk.e_since, row, s, 0, c)
        values = add_scaled(zero_block(u), chunk.beta, row, 0, load_block(v, row))
        block = add_scaled(values, chunk.minus, row, 0, there)
        block = add_terms(block, chunk.room.a, row, u, 0, row)
        store_block(u, row, solve_down(block, chunk.room.a, row))


@inner(forceinline=True)
def _read(out, chunk, s, u, rows, c, scale, later):
    """``out = (c * Q) S + P U`` (14), times the scale."""
    arrays, first, p, panels = later
    for row in range(0, rows, ROWS):
        shared.fetch(arrays, first + row, p, panels)
        there = add_terms(zero_block(out), chunk.q_since, row, s, 0, c)
        block = add_scaled(zero_block(out), chunk.since, row, 0, there)
        store_block(out, row, add_scaled(zero_block(out), scale, row, 0, add_triangle(block, chunk.room.p, row, u)))
