"""The two kernels of softmax attention, on tiles of ``TILE`` queries and ``TILE`` keys."""

import math

from linattn_ref.kernels.cuda.loops.device import cuda, inlined, kernel
from linattn_ref.kernels.cuda.loops.online_softmax import (
    MAXIMUM,
    SUM,
    add_sum,
    begin,
    decay,
    highest_parts,
    raise_maximum,
    scores_to_weights,
    to_scores,
)
from linattn_ref.kernels.cuda.loops.rows import is_large
from linattn_ref.kernels.cuda.loops.tile import (
    EACH,
    HALF,
    PITCH,
    SIDE,
    STEP,
    THREADS,
    TILE,
    TURNS,
    add_rows_by_panel,
    add_rows_by_rows,
    add_strips,
    clear,
    load_panel,
    load_rows,
    load_strips,
    take_turn,
    write,
)


@inlined
def sees(query, key, n, n_keys, key_mask, head, causal):
    """Whether a query may look at a key; False beyond the end of either."""
    inside = query < n and key < n_keys
    return inside and key_mask[head, key] and (not causal or key <= query + (n_keys - n))


@inlined
def store(x, y, acc, tile):
    """Numbers of all threads to shared memory, where they need not be counted out at compile time."""
    for r in range(EACH):
        for s in range(EACH):
            tile[y + SIDE * r, x + SIDE * s] = acc[r, s]


@kernel(threads=THREADS, blocks=2)
def forward_tile(q, k, v, key_mask, causal, scale, largest, out, log_sum_exp):
    """``out (heads, N, M)`` and ``log_sum_exp (heads, N)``. Grid: heads * tiles of queries, tiles of ``M``."""
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
        store(x, y, scores, tile)
        to_scores(x, y, tile, scale, largest)
        for i in range(y, TILE, SIDE):
            for j in range(x, TILE, SIDE):
                if not sees(row + i, key + j, n, n_keys, key_mask, head, causal):
                    tile[i, j] = -math.inf
        highest_parts(x, y, tile, panel)
        cuda.syncthreads()
        if t < TILE:
            raise_maximum(t, panel, state)  # (1)
        cuda.syncthreads()
        scores_to_weights(x, y, tile, panel, state)
        cuda.syncthreads()
        if t < TILE:
            add_sum(t, panel, state)  # (2)
        decay(y, acc, state)
        for first in range(0, min(TILE, n_keys - key), STEP):
            turn, turns = 0, 1
            while turn < turns:
                cuda.syncthreads()
                odd = load_panel(t, panel, v, head, key + first, first_m)
                if cuda.syncthreads_or(odd):
                    turns = TURNS
                    take_turn(t, turn, tile, first, panel, largest)
                    cuda.syncthreads()
                add_rows_by_panel(x, y, acc, tile, first, panel)  # (3)
                turn += 1
        cuda.syncthreads()

    if t < TILE:
        panel[0, t] = 0 if state[SUM, t] == 0 else 1 / state[SUM, t]
        if row + t < n and cuda.blockIdx.y == 0:
            log_sum_exp[head, row + t] = state[MAXIMUM, t]
            if state[SUM, t] != 0:
                log_sum_exp[head, row + t] = state[MAXIMUM, t] + math.log(state[SUM, t])
    cuda.syncthreads()
    write(x, y, acc, panel, out, head, row, first_m)  # (4)


@kernel(threads=THREADS, blocks=2)
def gradient_tile(
    a, b, a_value, b_value, u, key_mask, causal, scale, largest, log_sum_exp, row_sum, factor, d, rows_are_queries,
    derivative, above,
):  # fmt: skip
    """``d_i = factor sum_j W_ij u_j``: ``W`` is ``P`` or, if ``derivative``, ``d_S``; or the transpose of either.

    ``a, a_value`` belong to the rows and ``b, b_value`` to the columns of ``W``: ``q, d_out`` of queries, ``k, v`` of
    keys. Unless ``above`` is negative, rows are queries, and only tiles are written in which the log-sum-exp of one is
    large (`rows.is_large`). Grid: heads * tiles of rows, tiles of ``d``'s columns.
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
    if above >= 0:
        large = 0
        if t < TILE and row + t < rows and is_large(log_sum_exp[head, row + t], above):
            large = 1
        if not cuda.syncthreads_or(large):
            return
    clear(acc)
    start, stop = 0, columns
    if causal and rows_are_queries:
        stop = min(columns, row + TILE + (columns - rows))
    elif causal:
        start = max(0, row - (rows - columns)) // TILE * TILE
    for column in range(start, stop, TILE):
        clear(product)
        for first in range(0, a.shape[2], HALF):
            load_strips(t, panel, a, b, head, row, column, first)
            cuda.syncthreads()
            add_strips(x, y, product, panel)  # scores
            cuda.syncthreads()
        store(x, y, product, tile)
        to_scores(x, y, tile, scale, largest)
        for i in range(y, TILE, SIDE):
            for j in range(x, TILE, SIDE):
                query, key = (row + i, column + j) if rows_are_queries else (column + j, row + i)
                n, n_keys = (rows, columns) if rows_are_queries else (columns, rows)
                if sees(query, key, n, n_keys, key_mask, head, causal):
                    tile[i, j] = math.exp(tile[i, j] - log_sum_exp[head, query])  # (5)
                else:
                    tile[i, j] = 0
        if derivative:
            clear(product)
            for first in range(0, a_value.shape[2], HALF):
                load_strips(t, panel, a_value, b_value, head, row, column, first)
                cuda.syncthreads()
                add_strips(x, y, product, panel)  # d_P
                cuda.syncthreads()
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
        for first in range(0, min(TILE, columns - column), STEP):
            turn, turns = 0, 1
            while turn < turns:
                cuda.syncthreads()
                odd = load_panel(t, panel, u, head, column + first, first_m)
                if cuda.syncthreads_or(odd):
                    turns = TURNS
                    take_turn(t, turn, tile, first, panel, largest)
                    cuda.syncthreads()
                add_rows_by_panel(x, y, acc, tile, first, panel)
                turn += 1
        cuda.syncthreads()
    if t < TILE:
        panel[0, t] = factor
    cuda.syncthreads()
    write(x, y, acc, panel, d, head, row, first_m)
