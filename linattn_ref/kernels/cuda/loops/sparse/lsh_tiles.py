"""The kernels of LSH attention: tiles of ``TILE`` tokens by ``TILE``, fetched in one round's sorted order.

A block has ``rows`` places of a round's order, at most ``TILE`` of them; its columns are all places that one of them
meets. Who is in a tile stands in shared memory, in ``of``, a column for each place of the tile::

    QUERY   the query, or -1 for none                       KEY     the key, or -1 for none
    LOW     the first place whose key it meets              PLACE   its place in the order, or -1, which nobody meets
    HIGH    one past the last

Whether two tokens met before is seen from the chunks in which they lay in the earlier rounds. These take the way of two
factors of a product: ``HALF`` rounds at a time of the queries and of the keys into ``panel``, one below the other.
"""

import math

import numpy as np

from linattn_ref.kernels.cuda.loops.device import cuda, inlined, kernel
from linattn_ref.kernels.cuda.loops.gather import (
    HIGH,
    KEY,
    LOW,
    PLACE,
    QUERY,
    add_gathered,
    gather_strips,
    gather_tile,
    multiply_gathered,
    scatter,
)
from linattn_ref.kernels.cuda.loops.online_softmax import MAXIMUM, ROW_SUM, SUM, begin, go_on, to_scores, to_weights
from linattn_ref.kernels.cuda.loops.tile import EACH, HALF, PITCH, SIDE, STEP, THREADS, TILE, clear

# --- Who meets whom -------------------------------------------------------------------------------------------------


@kernel
def write_chunks(order, chunk, chunks):
    """The chunk of every token in every round, ``(heads, N, rounds)``, from ``order (heads, rounds, N)``."""
    e = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    row, place = e // order.shape[2], e % order.shape[2]
    head, current = row // order.shape[1], row % order.shape[1]
    if head < order.shape[0]:
        chunks[head, order[head, current, place], current] = place // chunk


@inlined
def look_up_query(of, t, order, head, current, place, inside, chunk):
    """The query at a place of the order, to place ``t`` of the tile."""
    of[QUERY, t], of[LOW, t], of[HIGH, t] = -1, 0, 0
    if inside:
        own = place // chunk * chunk
        of[QUERY, t] = order[head, current, place]
        of[LOW, t], of[HIGH, t] = max(own - chunk, 0), own + chunk  # its own chunk and the one before


@inlined
def look_up_key(of, t, order, head, current, place, inside):
    """The key at a place of the order, to place ``t`` of the tile."""
    of[KEY, t], of[PLACE, t] = -1, -1
    if inside:
        of[KEY, t], of[PLACE, t] = order[head, current, place], place


@inlined
def hide_strangers(x, y, tile, of, causal, rows_are_queries):
    """``-inf`` for a pair that does not meet in this round."""
    for r in range(EACH):
        for s in range(EACH):
            i, j = y + SIDE * r, x + SIDE * s
            query, key = (i, j) if rows_are_queries else (j, i)
            if not of[LOW, query] <= of[PLACE, key] < of[HIGH, query]:
                tile[i, j] = -math.inf
            if of[KEY, key] == of[QUERY, query] or (causal and of[KEY, key] > of[QUERY, query]):
                tile[i, j] = -math.inf


@inlined
def hide_met_before(x, y, tile, panel, rounds, rows_are_queries):
    """``-inf`` for a pair whose query was in the key's chunk, or the next, in one of the ``rounds`` in ``panel``."""
    for r in range(EACH):
        for s in range(EACH):
            i, j = y + SIDE * r, x + SIDE * s
            query, key = (i, j) if rows_are_queries else (j, i)
            for c in range(rounds):
                ahead = panel[c, query] - panel[HALF + c, key]
                if ahead == 0 or ahead == 1:
                    tile[i, j] = -math.inf


# --- Forward --------------------------------------------------------------------------------------------------------


@kernel(threads=THREADS, blocks=2)
def forward_tile(q, k, v, order, chunks, seen, current, rows, chunk, causal, scale, largest, so_far, out, with_it):
    """Add round ``current`` to ``out (heads, N, M)``. Grid: heads * tiles of ``rows`` places, tiles of ``M``.

    The maximum and sum of earlier rounds come from ``so_far (heads, N, 2)``, and go to ``with_it`` with this one:
    another block may have written there already.
    """
    tile = cuda.shared.array((TILE, PITCH), q.dtype)
    panel = cuda.shared.array((STEP, PITCH), q.dtype)
    state = cuda.shared.array((3, TILE), q.dtype)
    of = cuda.shared.array((5, TILE), np.int32)
    acc = cuda.local.array((EACH, EACH), q.dtype)
    scores = cuda.local.array((EACH, EACH), q.dtype)
    count = (q.shape[1] + rows - 1) // rows
    head, row, first_m = cuda.blockIdx.x // count, cuda.blockIdx.x % count * rows, cuda.blockIdx.y * TILE
    x, y = max(cuda.threadIdx.x, 0), max(cuda.threadIdx.y, 0)
    t = y * SIDE + x
    last_row = min(row + rows, seen[head])
    if t < TILE:
        look_up_query(of, t, order, head, current, row + t, row + t < last_row, chunk)
        begin(t, state)
        if of[QUERY, t] >= 0:
            go_on(t, state, so_far, head, of[QUERY, t])
    cuda.syncthreads()
    gather_tile(x, y, acc, out, head, of, QUERY, first_m)
    start, stop = max(row // chunk - 1, 0) * chunk, 0
    if row < last_row:
        stop = min(((last_row - 1) // chunk + 1) * chunk, seen[head])
    for column in range(start, stop, TILE):
        if t < TILE:
            look_up_key(of, t, order, head, current, column + t, column + t < stop)
        cuda.syncthreads()
        multiply_gathered(x, y, scores, panel, q, k, head, of, QUERY, KEY)  # (TILE, TILE)
        to_scores(x, y, scores, tile, scale, largest)
        hide_strangers(x, y, tile, of, causal, True)
        for first in range(0, current, HALF):
            gather_strips(x, y, panel, chunks, chunks, head, of, QUERY, KEY, first)
            cuda.syncthreads()
            hide_met_before(x, y, tile, panel, min(HALF, current - first), True)
            cuda.syncthreads()
        to_weights(x, y, t, tile, panel, state, acc)
        add_gathered(x, y, t, acc, tile, panel, v, head, of, KEY, stop - column, first_m, largest)

    if t < TILE and of[QUERY, t] >= 0 and cuda.blockIdx.y == 0:
        with_it[head, of[QUERY, t], 0], with_it[head, of[QUERY, t], 1] = state[MAXIMUM, t], state[SUM, t]
    scatter(x, y, acc, out, head, of, QUERY, first_m)


# --- Backward -------------------------------------------------------------------------------------------------------


@kernel(threads=THREADS, blocks=2)
def gradient_tile(
    a, b, a_value, b_value, u, order, chunks, seen, current, rows, chunk, causal, scale, largest, m, row_sum, factor, d,
    rows_are_queries, derivative,
):  # fmt: skip
    """``d_i += factor sum_j W_ij u_j`` over the pairs of a round: ``W`` is ``P`` or, if ``derivative``, ``d_S``; or the
    transpose of either. Neither is divided by the sums of weights here, since ``d_out`` has been.

    ``a, a_value`` belong to the rows and ``b, b_value`` to the columns of ``W``: ``q, d_out`` of queries, ``k, v`` of
    keys. Grid: heads * tiles of ``rows`` places, tiles of ``d``'s columns.
    """
    tile = cuda.shared.array((TILE, PITCH), a.dtype)
    panel = cuda.shared.array((STEP, PITCH), a.dtype)
    state = cuda.shared.array((2, TILE), a.dtype)
    of = cuda.shared.array((5, TILE), np.int32)
    product = cuda.local.array((EACH, EACH), a.dtype)
    acc = cuda.local.array((EACH, EACH), a.dtype)
    count = (a.shape[1] + rows - 1) // rows
    head, row, first_m = cuda.blockIdx.x // count, cuda.blockIdx.x % count * rows, cuda.blockIdx.y * TILE
    x, y = max(cuda.threadIdx.x, 0), max(cuda.threadIdx.y, 0)
    t = y * SIDE + x
    of_row, of_column = (QUERY, KEY) if rows_are_queries else (KEY, QUERY)
    last_row = min(row + rows, seen[head])
    start, stop = row // chunk * chunk, 0
    if rows_are_queries:
        start = max(start - chunk, 0)
    if row < last_row:
        stop = min(((last_row - 1) // chunk + (1 if rows_are_queries else 2)) * chunk, seen[head])
    if t < TILE:
        if rows_are_queries:
            look_up_query(of, t, order, head, current, row + t, row + t < last_row, chunk)
        else:
            look_up_key(of, t, order, head, current, row + t, row + t < last_row)
    cuda.syncthreads()
    clear(acc)
    for column in range(start, stop, TILE):
        if t < TILE:
            if rows_are_queries:
                look_up_key(of, t, order, head, current, column + t, column + t < stop)
            else:
                look_up_query(of, t, order, head, current, column + t, column + t < stop, chunk)
            state[MAXIMUM, t], state[ROW_SUM, t] = 0, 0
            if of[QUERY, t] >= 0:
                state[MAXIMUM, t], state[ROW_SUM, t] = m[head, of[QUERY, t]], row_sum[head, of[QUERY, t]]
        cuda.syncthreads()
        multiply_gathered(x, y, product, panel, a, b, head, of, of_row, of_column)  # scores
        to_scores(x, y, product, tile, scale, largest)
        hide_strangers(x, y, tile, of, causal, rows_are_queries)
        for first in range(0, current, HALF):
            gather_strips(x, y, panel, chunks, chunks, head, of, QUERY, KEY, first)
            cuda.syncthreads()
            hide_met_before(x, y, tile, panel, min(HALF, current - first), rows_are_queries)
            cuda.syncthreads()
        for r in range(EACH):
            for s in range(EACH):
                i, j = y + SIDE * r, x + SIDE * s
                if tile[i, j] == -math.inf:
                    tile[i, j] = 0
                else:
                    tile[i, j] = math.exp(tile[i, j] - state[MAXIMUM, i if rows_are_queries else j])
        if derivative:
            multiply_gathered(x, y, product, panel, a_value, b_value, head, of, of_row, of_column)  # d_P
            for r in range(EACH):
                for s in range(EACH):
                    i, j = y + SIDE * r, x + SIDE * s
                    if tile[i, j] != 0:  # a pair that does not meet stays 0, whatever d_P is
                        tile[i, j] *= product[r, s] - state[ROW_SUM, i if rows_are_queries else j]
        add_gathered(x, y, t, acc, tile, panel, u, head, of, of_column, stop - column, first_m, largest)
    for r in range(EACH):
        i = y + SIDE * r
        for s in range(EACH):
            c = first_m + x + SIDE * s
            if of[of_row, i] >= 0 and c < d.shape[2]:
                d[head, of[of_row, i], c] += factor * acc[r, s]
