"""The two kernels of pattern softmax: tiles of ``TILE`` queries and keys, fetched by their numbers.

A block has one task (`pattern_tasks`) of one head. Its rows stay, and tiles of columns come one by one, counted through
the task's runs. Who is in them stands in ``of`` (`gather`).

Blocks start with the first task of all heads, then comes the second: long tasks stand first.
"""

import math

import numpy as np

from linattn_ref.kernels.cuda.loops.device import cuda, kernel
from linattn_ref.kernels.cuda.loops.gather import (
    HIGH,
    KEY,
    LOW,
    PIECE,
    PLACE,
    QUERY,
    add_gathered,
    gather_tile,
    look_up_key,
    look_up_query,
    multiply_gathered,
    scatter,
)
from linattn_ref.kernels.cuda.loops.online_softmax import MAXIMUM, ROW_SUM, SUM, begin, go_on, to_scores, to_weights
from linattn_ref.kernels.cuda.loops.sparse.pattern_tasks import (
    BEFORE,
    COLUMN,
    LAST_COLUMN,
    LAST_ROW,
    LAST_RUN,
    ROW,
    RUN,
    SLOT,
    START,
)
from linattn_ref.kernels.cuda.loops.tile import EACH, PITCH, SIDE, STEP, THREADS, TILE, clear


@kernel(threads=THREADS, blocks=2)
def forward_tile(
    q, k, v, key_mask, tasks, runs, queries, keys, scale, largest, so_far, out, with_it, pieces, of_pieces,
):  # fmt: skip
    """One part's share in ``out (heads, N, M)``. Grid: tasks * heads, tiles of ``M``.

    The maximum and sum of earlier parts come from ``so_far (heads, N, 2)``, and go to ``with_it`` with this one:
    another block may have written there already. A piece knows of no earlier parts, and goes to its slot in ``pieces``
    and ``of_pieces``.
    """
    tile = cuda.shared.array((TILE, PITCH), q.dtype)
    panel = cuda.shared.array((STEP, PITCH), q.dtype)
    state = cuda.shared.array((3, TILE), q.dtype)
    of = cuda.shared.array((6, TILE), np.int32)
    acc = cuda.local.array((EACH, EACH), q.dtype)
    scores = cuda.local.array((EACH, EACH), q.dtype)
    head, task, first_m = cuda.blockIdx.x % q.shape[0], cuda.blockIdx.x // q.shape[0], cuda.blockIdx.y * TILE
    x, y = max(cuda.threadIdx.x, 0), max(cuda.threadIdx.y, 0)
    t = y * SIDE + x
    slot = tasks[task, SLOT]
    if t < TILE:
        row = tasks[task, ROW] + t
        look_up_query(of, t, queries, row, row < tasks[task, LAST_ROW])
        of[PIECE, t] = -1
        begin(t, state)
        if of[QUERY, t] >= 0 and slot >= 0:
            of[PIECE, t] = slot * TILE + t
        elif of[QUERY, t] >= 0:
            go_on(t, state, so_far, head, of[QUERY, t])
    cuda.syncthreads()
    clear(acc)
    if slot < 0:
        gather_tile(x, y, acc, out, head, of, QUERY, first_m)
    run, last_run, columns = tasks[task, RUN], tasks[task, LAST_RUN], tasks[task, LAST_COLUMN]
    for start in range(tasks[task, COLUMN], columns, TILE):
        if t < TILE:
            while run + 1 < last_run and runs[run + 1, BEFORE] <= start + t:
                run += 1
            column = runs[run, START] + start + t - runs[run, BEFORE]
            look_up_key(of, t, keys, column, start + t < columns, key_mask, head)
        cuda.syncthreads()
        multiply_gathered(x, y, scores, panel, q, k, head, of, QUERY, KEY)  # (TILE, TILE)
        to_scores(x, y, scores, tile, scale, largest)
        for r in range(EACH):
            for s in range(EACH):
                i, j = y + SIDE * r, x + SIDE * s
                if not of[LOW, i] <= of[PLACE, j] < of[HIGH, i]:
                    tile[i, j] = -math.inf
        to_weights(x, y, t, tile, panel, state, acc)  # (1), (2)
        add_gathered(x, y, t, acc, tile, panel, v, head, of, KEY, columns - start, first_m, largest)  # (3)

    if t < TILE and cuda.blockIdx.y == 0:
        if of[PIECE, t] >= 0:
            of_pieces[head, of[PIECE, t], 0], of_pieces[head, of[PIECE, t], 1] = state[MAXIMUM, t], state[SUM, t]
        elif of[QUERY, t] >= 0:
            with_it[head, of[QUERY, t], 0], with_it[head, of[QUERY, t], 1] = state[MAXIMUM, t], state[SUM, t]
    if slot < 0:
        scatter(x, y, acc, out, head, of, QUERY, first_m)
    else:
        scatter(x, y, acc, pieces, head, of, PIECE, first_m)


@kernel(threads=THREADS, blocks=2)
def gradient_tile(
    a, b, a_value, b_value, u, key_mask, tasks, runs, queries, keys, scale, largest, m, row_sum, factor, d, pieces,
    rows_are_queries, derivative,
):  # fmt: skip
    """``d_i += factor sum_j W_ij u_j`` over the pairs of a part: ``W`` is ``P`` or, if ``derivative``, ``d_S``; or the
    transpose of either. Neither is divided by the sums of weights here, since ``d_out`` has been.

    ``a, a_value`` belong to the rows and ``b, b_value`` to the columns of ``W``: ``q, d_out`` of queries, ``k, v`` of
    keys. Pieces go to their slots in ``pieces``. Grid: tasks * heads, tiles of ``d``'s columns.
    """
    tile = cuda.shared.array((TILE, PITCH), a.dtype)
    panel = cuda.shared.array((STEP, PITCH), a.dtype)
    state = cuda.shared.array((2, TILE), a.dtype)
    of = cuda.shared.array((5, TILE), np.int32)
    product = cuda.local.array((EACH, EACH), a.dtype)
    acc = cuda.local.array((EACH, EACH), a.dtype)
    head, task, first_m = cuda.blockIdx.x % a.shape[0], cuda.blockIdx.x // a.shape[0], cuda.blockIdx.y * TILE
    x, y = max(cuda.threadIdx.x, 0), max(cuda.threadIdx.y, 0)
    t = y * SIDE + x
    rows, others = (QUERY, KEY) if rows_are_queries else (KEY, QUERY)
    clear(acc)
    run, last_run, columns = tasks[task, RUN], tasks[task, LAST_RUN], tasks[task, LAST_COLUMN]
    for start in range(tasks[task, COLUMN], columns, TILE):
        if t < TILE:
            while run + 1 < last_run and runs[run + 1, BEFORE] <= start + t:
                run += 1
            row, column = tasks[task, ROW] + t, runs[run, START] + start + t - runs[run, BEFORE]
            row_inside, column_inside = row < tasks[task, LAST_ROW], start + t < columns
            if rows_are_queries:
                look_up_query(of, t, queries, row, row_inside)
                look_up_key(of, t, keys, column, column_inside, key_mask, head)
            else:
                look_up_query(of, t, queries, column, column_inside)
                look_up_key(of, t, keys, row, row_inside, key_mask, head)
            state[MAXIMUM, t], state[ROW_SUM, t] = 0, 0
            if of[QUERY, t] >= 0:
                state[MAXIMUM, t], state[ROW_SUM, t] = m[head, of[QUERY, t]], row_sum[head, of[QUERY, t]]
        cuda.syncthreads()
        multiply_gathered(x, y, product, panel, a, b, head, of, rows, others)  # scores
        to_scores(x, y, product, tile, scale, largest)
        for r in range(EACH):
            for s in range(EACH):
                i, j = y + SIDE * r, x + SIDE * s
                query, key = (i, j) if rows_are_queries else (j, i)
                if of[LOW, query] <= of[PLACE, key] < of[HIGH, query]:
                    tile[i, j] = math.exp(tile[i, j] - state[MAXIMUM, query])  # (5)
                else:
                    tile[i, j] = 0
        if derivative:
            multiply_gathered(x, y, product, panel, a_value, b_value, head, of, rows, others)  # d_P
            for r in range(EACH):
                for s in range(EACH):
                    i, j = y + SIDE * r, x + SIDE * s
                    if tile[i, j] != 0:  # a pair that does not see one another stays 0, whatever d_P is
                        tile[i, j] *= product[r, s] - state[ROW_SUM, i if rows_are_queries else j]
        add_gathered(x, y, t, acc, tile, panel, u, head, of, others, columns - start, first_m, largest)
    slot = tasks[task, SLOT]
    for r in range(EACH):
        i = y + SIDE * r
        for s in range(EACH):
            column = first_m + x + SIDE * s
            if of[rows, i] >= 0 and column < d.shape[2]:
                if slot < 0:
                    d[head, of[rows, i], column] += factor * acc[r, s]
                else:
                    pieces[head, slot * TILE + i, column] = factor * acc[r, s]
