"""The two kernels of softmax attention, on tiles of ``TILE`` queries and ``TILE`` keys."""

import math

import numpy as np

from linattn_ref.kernels.cuda.loops.device import cuda, inlined, kernel
from linattn_ref.kernels.cuda.loops.online_softmax import MAXIMUM, ROW_SUM, SUM, begin, to_scores, to_weights
from linattn_ref.kernels.cuda.loops.tile import (
    EACH,
    PITCH,
    SIDE,
    STEP,
    THREADS,
    TILE,
    add_product,
    add_rows_by_rows,
    clear,
    load_rows,
    multiply_strips,
    write,
)

QUERY, SEEN_FROM = 0, 1  # rows of `of`, a column for each place of a tile


@inlined
def look_up(of, t, query, key, n, n_keys, key_mask, head, causal):
    """To place ``t``: the query's number, -1 beyond the end; the first query that sees the key, ``n`` for none."""
    of[QUERY, t], of[SEEN_FROM, t] = -1, n
    if query < n:
        of[QUERY, t] = query
    if key < n_keys and key_mask[head, key]:
        of[SEEN_FROM, t] = max(key - (n_keys - n), 0) if causal else 0


@kernel(threads=THREADS, blocks=2)
def forward_tile(q, k, v, key_mask, causal, scale, largest, out, m, share):
    """``out (heads, N, M)``, ``m`` and ``share (heads, N)``. Grid: heads * tiles of queries, tiles of ``M``."""
    tile = cuda.shared.array((TILE, PITCH), q.dtype)
    panel = cuda.shared.array((STEP, PITCH), q.dtype)
    state = cuda.shared.array((3, TILE), q.dtype)
    of = cuda.shared.array((2, TILE), np.int32)
    acc = cuda.local.array((EACH, EACH), q.dtype)
    scores = cuda.local.array((EACH, EACH), q.dtype)
    n, n_keys = q.shape[1], k.shape[1]
    count = (n + TILE - 1) // TILE
    head, row, first_m = cuda.blockIdx.x // count, cuda.blockIdx.x % count * TILE, cuda.blockIdx.y * TILE
    x, y = max(cuda.threadIdx.x, 0), max(cuda.threadIdx.y, 0)
    t = y * SIDE + x
    clear(acc)
    if t < TILE:
        begin(t, state)
    stop = min(n_keys, row + TILE + (n_keys - n)) if causal else n_keys
    for key in range(0, stop, TILE):
        if t < TILE:
            look_up(of, t, row + t, key + t, n, n_keys, key_mask, head, causal)
        clear(scores)
        for first in range(0, q.shape[2], STEP):
            load_rows(x, y, tile, 0, q, head, row, first)
            load_rows(x, y, tile, STEP, k, head, key, first)
            cuda.syncthreads()
            add_rows_by_rows(x, y, scores, tile)  # (TILE, TILE)
            cuda.syncthreads()
        to_scores(x, y, scores, tile, scale, largest)
        for r in range(EACH):
            for s in range(EACH):
                i, j = y + SIDE * r, x + SIDE * s
                if of[QUERY, i] < of[SEEN_FROM, j]:
                    tile[i, j] = -math.inf
        to_weights(x, y, t, tile, panel, state, acc)  # (1), (2)
        add_product(x, y, t, acc, tile, panel, v, head, key, first_m, largest)  # (3)

    if t < TILE:
        panel[0, t] = 0 if state[SUM, t] == 0 else 1 / state[SUM, t]
        if row + t < n and cuda.blockIdx.y == 0:
            m[head, row + t], share[head, row + t] = state[MAXIMUM, t], panel[0, t]
    cuda.syncthreads()
    for r in range(EACH):
        for s in range(EACH):
            acc[r, s] *= panel[0, y + SIDE * r]  # (4)
    write(x, y, acc, out, head, row, first_m)


@kernel(threads=THREADS, blocks=2)
def gradient_tile(
    a, b, a_value, b_value, u, key_mask, causal, scale, largest, m, row_sum, factor, d, rows_are_queries, derivative,
):  # fmt: skip
    """``d_i = factor sum_j W_ij u_j``: ``W`` is ``P`` or, if ``derivative``, ``d_S``; or the transpose of either.

    Neither is divided by the sums of weights here, since ``d_out`` has been (`softmax.gradients`).

    ``a, a_value`` belong to the rows and ``b, b_value`` to the columns of ``W``: ``q, d_out`` of queries, ``k, v`` of
    keys. Grid: heads * tiles of rows, tiles of ``d``'s columns.
    """
    tile = cuda.shared.array((TILE, PITCH), a.dtype)
    panel = cuda.shared.array((STEP, PITCH), a.dtype)
    state = cuda.shared.array((2, TILE), a.dtype)
    of = cuda.shared.array((2, TILE), np.int32)
    product = cuda.local.array((EACH, EACH), a.dtype)
    acc = cuda.local.array((EACH, EACH), a.dtype)
    rows, columns = a.shape[1], b.shape[1]
    count = (rows + TILE - 1) // TILE
    head, row, first_m = cuda.blockIdx.x // count, cuda.blockIdx.x % count * TILE, cuda.blockIdx.y * TILE
    x, y = max(cuda.threadIdx.x, 0), max(cuda.threadIdx.y, 0)
    t = y * SIDE + x
    clear(acc)
    start, stop = 0, columns
    if causal and rows_are_queries:
        stop = min(columns, row + TILE + (columns - rows))
    elif causal:
        start = max(0, row - (rows - columns)) // TILE * TILE
    n, n_keys = (rows, columns) if rows_are_queries else (columns, rows)
    for column in range(start, stop, TILE):
        if t < TILE:
            query, key = (row + t, column + t) if rows_are_queries else (column + t, row + t)
            look_up(of, t, query, key, n, n_keys, key_mask, head, causal)
            state[MAXIMUM, t], state[ROW_SUM, t] = 0, 0
            if query < n:
                state[MAXIMUM, t], state[ROW_SUM, t] = m[head, query], row_sum[head, query]
        multiply_strips(x, y, product, panel, a, b, head, row, column)  # scores
        to_scores(x, y, product, tile, scale, largest)
        for r in range(EACH):
            for s in range(EACH):
                i, j = y + SIDE * r, x + SIDE * s
                query, key = (i, j) if rows_are_queries else (j, i)
                if of[QUERY, query] >= of[SEEN_FROM, key]:
                    tile[i, j] = math.exp(tile[i, j] - state[MAXIMUM, query])  # (5)
                else:
                    tile[i, j] = 0
        if derivative:
            multiply_strips(x, y, product, panel, a_value, b_value, head, row, column)  # d_P
            for r in range(EACH):
                for s in range(EACH):
                    i, j = y + SIDE * r, x + SIDE * s
                    if tile[i, j] != 0:  # a pair that does not see one another stays 0, whatever d_P is
                        tile[i, j] *= product[r, s] - state[ROW_SUM, i if rows_are_queries else j]
        add_product(x, y, t, acc, tile, panel, u, head, column, first_m, largest)
    for r in range(EACH):
        for s in range(EACH):
            acc[r, s] *= factor
    write(x, y, acc, d, head, row, first_m)
