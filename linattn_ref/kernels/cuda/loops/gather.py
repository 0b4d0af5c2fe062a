"""Tiles of queries and keys that do not lie one behind the other: fetched by their numbers, written back likewise.

Who is in a tile stands in shared memory, in ``of``, a column for each place of the tile::

    QUERY   number of the query, or -1 for none         KEY     number of the key, or -1 for none or a masked one
    LOW     the first and one past the last             PLACE   its column in the part; likewise -1, which nobody sees
    HIGH    column of the part that it sees
    PIECE   where a piece of it goes, or -1

For the kernels of `pattern_softmax` and `lsh`.
"""

import math

from linattn_ref.kernels.cuda.loops.device import NATURAL, inlined, syncthreads, syncthreads_or
from linattn_ref.kernels.cuda.loops.tile import (
    EACH,
    HALF,
    SIDE,
    STEP,
    TILE,
    TURNS,
    add_rows_by_panel,
    add_strips,
    clear,
    take_turn,
)

QUERY, LOW, HIGH, KEY, PLACE, PIECE = 0, 1, 2, 3, 4, 5  # rows of `of`
NUMBER, FIRST, LAST = 0, 1, 2  # of `queries (rows, 3)`: the query's number, and what it sees


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
def gather_panel(x, y, panel, a, head, of, who, place, first):
    """``TILE`` columns of ``STEP`` rows of ``a[head]``, of ``of[who]`` those from ``place`` on.

    Returns 1 if one of the thread's numbers is NaN or infinite, else 0.
    """
    odd, head, first = 0, head & NATURAL, first & NATURAL
    row = of[who, (place & NATURAL) + y]
    for s in range(EACH):
        j = x + SIDE * s
        panel[y, j] = 0
        if row >= 0 and first + j < a.shape[2]:
            panel[y, j] = a[head, row & NATURAL, first + j]
            if not math.isfinite(panel[y, j]):
                odd = 1
    return odd


@inlined
def gather_strips(x, y, panel, a, b, head, of, who_a, who_b, first):
    """``HALF`` columns of the rows ``of[who_a]`` of ``a[head]`` and ``of[who_b]`` of ``b[head]``, transposed."""
    head, first, who = head & NATURAL, first & NATURAL, who_a if x < HALF else who_b
    for r in range(EACH):
        i = y + SIDE * r
        row = of[who, i]
        panel[x, i] = 0
        if row >= 0:
            if x < HALF:
                if first + x < a.shape[2]:
                    panel[x, i] = a[head, row & NATURAL, first + x]
            elif first + x - HALF < b.shape[2]:
                panel[x, i] = b[head, row & NATURAL, first + x - HALF]


@inlined
def gather_tile(x, y, acc, out, head, of, who, first_m):
    """``TILE`` columns of the rows ``of[who]`` of ``out[head]``; each thread has its own numbers in registers."""
    for r in range(EACH):
        i = y + SIDE * r
        for s in range(EACH):
            acc[r, s] = 0
            if of[who, i] >= 0 and first_m + x + SIDE * s < out.shape[2]:
                acc[r, s] = out[head, of[who, i], first_m + x + SIDE * s]


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
def multiply_gathered(x, y, acc, panel, a, b, head, of, who_a, who_b):
    """``acc = a b^T``, of the rows ``of[who_a]`` of ``a[head]`` and ``of[who_b]`` of ``b[head]``."""
    clear(acc)
    for first in range(0, a.shape[2], HALF):
        gather_strips(x, y, panel, a, b, head, of, who_a, who_b, first)
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
            odd = gather_panel(x, y, panel, u, head, of, who, first, first_m)
            if syncthreads_or(odd):
                turns = TURNS
                take_turn(t, turn, tile, first, panel, largest)
                syncthreads()
            add_rows_by_panel(x, y, acc, tile, first, panel)
            turn += 1
    syncthreads()
