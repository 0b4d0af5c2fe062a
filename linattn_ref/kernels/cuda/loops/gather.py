"""Tiles of queries and keys that do not lie one behind the other: fetched by their numbers, written back likewise.

Who is in a tile stands in shared memory, in ``of``, a column for each place of the tile::

    QUERY   number of the query, or -1 for none         KEY     number of the key, or -1 for none or a masked one
    LOW     the first and one past the last             PLACE   its column in the part; likewise -1, which nobody sees
    HIGH    column of the part that it sees
    PIECE   where a piece of it goes, or -1

For the kernels of `pattern_softmax` and `lsh`.
"""

import math

from linattn_ref.kernels.cuda.loops.device import inlined, syncthreads, syncthreads_or
from linattn_ref.kernels.cuda.loops.half_tiles import NATURAL
from linattn_ref.kernels.cuda.loops.tensor_cores import here
from linattn_ref.kernels.cuda.loops.tile import (
    EACH,
    HALF,
    SIDE,
    STEP,
    THREADS,
    TILE,
    TURNS,
    add_rows_by_panel,
    add_strips,
    clear,
    take_turn,
)

QUERY, LOW, HIGH, KEY, PLACE, PIECE = 0, 1, 2, 3, 4, 5  # rows of `of`
NUMBER, FIRST, LAST = 0, 1, 2  # of `queries (rows, 3)`: the query's number, and what it sees
ROW_SUM = 1  # a row of `state` beside the maximum, a column for each query, in a backward pass


# --- Who is in a tile -----------------------------------------------------------------------------------------------


@inlined
def look_up_query(of, t, queries, row, inside):
    """The query in one row of the part, to place ``t`` of the tile."""
    of[QUERY, t], of[LOW, t], of[HIGH, t] = -1, 0, 0
    if inside:
        of[QUERY, t], of[LOW, t], of[HIGH, t] = queries[row, NUMBER], queries[row, FIRST], queries[row, LAST]


@inlined
def look_up_key(of, t, keys, column, inside, key_mask, head):
    """The key in one column of the part, to place ``t`` of the tile."""
    of[KEY, t], of[PLACE, t] = -1, -1
    if inside and key_mask[head, keys[column]]:
        of[KEY, t], of[PLACE, t] = keys[column], column


# --- Rows by their numbers ------------------------------------------------------------------------------------------


@inlined
def gather_panel(t, panel, x, head, of, who, place, first):
    """``TILE`` columns of ``STEP`` rows of ``x[head]``, of ``of[who]`` those from ``place`` on.

    Returns 1 if one of the thread's numbers is NaN or infinite, else 0.
    """
    odd, t, place = 0, here(t) & NATURAL, place & NATURAL
    for e in range(t, TILE * STEP, THREADS):
        c, j = e // TILE, e % TILE
        panel[c, j] = 0
        if of[who, place + c] >= 0 and first + j < x.shape[2]:
            panel[c, j] = x[head, of[who, place + c], first + j]
            if not math.isfinite(panel[c, j]):
                odd = 1
    return odd


@inlined
def gather_strips(t, panel, a, b, head, of, who_a, who_b, first):
    """``HALF`` columns of the rows ``of[who_a]`` of ``a[head]`` and ``of[who_b]`` of ``b[head]``, transposed."""
    for e in range(t, TILE * HALF, THREADS):
        i, c = e // HALF, e % HALF
        panel[c, i], panel[HALF + c, i] = 0, 0
        if first + c < a.shape[2]:
            if of[who_a, i] >= 0:
                panel[c, i] = a[head, of[who_a, i], first + c]
            if of[who_b, i] >= 0:
                panel[HALF + c, i] = b[head, of[who_b, i], first + c]


@inlined
def gather_tile(x, y, tile, out, head, of, who, first_m):
    """``TILE`` columns of the rows ``of[who]`` of ``out[head]``; each thread the numbers that it has in registers."""
    for i in range(y, TILE, SIDE):
        for j in range(x, TILE, SIDE):
            tile[i, j] = 0
            if of[who, i] >= 0 and first_m + j < out.shape[2]:
                tile[i, j] = out[head, of[who, i], first_m + j]


@inlined
def take(x, y, acc, tile):
    """Numbers of ``tile`` to the registers of the threads that compute with them."""
    for r in range(EACH):
        for s in range(EACH):
            acc[r, s] = tile[y + SIDE * r, x + SIDE * s]


@inlined
def scatter(x, y, acc, out, head, of, who, first_m):
    """The tile ``acc`` to the rows ``of[who]`` of ``out[head]``."""
    for r in range(EACH):
        i = y + SIDE * r
        for s in range(EACH):
            m = first_m + x + SIDE * s
            if of[who, i] >= 0 and m < out.shape[2]:
                out[head, of[who, i], m] = acc[r, s]


# --- Products of such rows, as in `tile` ----------------------------------------------------------------------------


@inlined
def multiply_gathered(x, y, t, acc, panel, a, b, head, of, who_a, who_b):
    """``acc = a b^T``, of the rows ``of[who_a]`` of ``a[head]`` and ``of[who_b]`` of ``b[head]``."""
    clear(acc)
    for first in range(0, a.shape[2], HALF):
        gather_strips(t, panel, a, b, head, of, who_a, who_b, first)
        syncthreads()
        add_strips(x, y, acc, panel)
        syncthreads()


@inlined
def add_gathered(x, y, t, acc, tile, panel, u, head, of, who, count, first_m, largest):
    """``acc += tile @ u[head]``, of ``count`` rows ``of[who]``; a weight of 0 takes nothing, not even NaN."""
    for first in range(0, min(TILE, count), STEP):
        turn, turns = 0, 1
        while turn < turns:
            syncthreads()
            odd = gather_panel(t, panel, u, head, of, who, first, first_m)
            if syncthreads_or(odd):
                turns = TURNS
                take_turn(t, turn, tile, first, panel, largest)
                syncthreads()
            add_rows_by_panel(x, y, acc, tile, first, panel)
            turn += 1
    syncthreads()
