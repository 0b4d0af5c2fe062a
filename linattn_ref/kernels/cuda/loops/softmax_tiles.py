"""The two kernels of softmax attention, on tiles of ``TILE`` queries and ``TILE`` keys."""

import math

from linattn_ref.kernels.cuda.loops.device import cuda, inlined, kernel
from linattn_ref.kernels.cuda.loops.online_softmax import MAXIMUM, SUM, begin, to_scores, to_weights
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


@inlined
def sees(query, key, n, n_keys, key_mask, head, causal):
    """Whether a query may look at a key; False beyond the end of either."""
    inside = query < n and key < n_keys
    return inside and key_mask[head, key] and (not causal or key <= query + (n_keys - n))


@kernel(threads=THREADS, blocks=2)
def forward_tile(q, k, v, key_mask, causal, scale, largest, out, m, share):
    """``out (heads, N, M)``, ``m`` and ``share (heads, N)``. Grid: heads * tiles of queries, tiles of ``M``."""
    tile = cuda.shared.array((TILE, PITCH), q.dtype)
    panel = cuda.shared.array((STEP, PITCH), q.dtype)
    state = cuda.shared.array((3, TILE), q.dtype)
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
        clear(scores)
        for first in range(0, q.shape[2], STEP):
            load_rows(t, tile, 0, q, head, row, first)
            load_rows(t, tile, STEP, k, head, key, first)
            cuda.syncthreads()
            add_rows_by_rows(x, y, scores, tile)  # (TILE, TILE)
            cuda.syncthreads()
        to_scores(x, y, scores, tile, scale, largest)
        for i in range(y, TILE, SIDE):
            for j in range(x, TILE, SIDE):
                if not sees(row + i, key + j, n, n_keys, key_mask, head, causal):
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
    for column in range(start, stop, TILE):
        multiply_strips(x, y, t, product, panel, a, b, head, row, column)  # scores
        to_scores(x, y, product, tile, scale, largest)
        for i in range(y, TILE, SIDE):
            for j in range(x, TILE, SIDE):
                query, key = (row + i, column + j) if rows_are_queries else (column + j, row + i)
                n, n_keys = (rows, columns) if rows_are_queries else (columns, rows)
                if sees(query, key, n, n_keys, key_mask, head, causal):
                    tile[i, j] = math.exp(tile[i, j] - m[head, query])  # (5)
                else:
                    tile[i, j] = 0
        if derivative:
            multiply_strips(x, y, t, product, panel, a_value, b_value, head, row, column)  # d_P
            if t < TILE:
                panel[0, t] = 0
                query, n = (row + t, rows) if rows_are_queries else (column + t, columns)
                if query < n:
                    panel[0, t] = row_sum[head, query]
            cuda.syncthreads()
            for r in range(EACH):
                for s in range(EACH):
                    i, j = y + SIDE * r, x + SIDE * s
                    if tile[i, j] != 0:  # a pair that does not see one another stays 0, whatever d_P is
                        tile[i, j] *= product[r, s] - panel[0, i if rows_are_queries else j]
        add_product(x, y, t, acc, tile, panel, u, head, column, first_m, largest)
    for r in range(EACH):
        for s in range(EACH):
            acc[r, s] *= factor
    write(x, y, acc, d, head, row, first_m)
