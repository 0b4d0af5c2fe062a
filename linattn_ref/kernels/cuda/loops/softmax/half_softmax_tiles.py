"""The kernels of softmax attention for bfloat16 and float16, on tensor cores: `softmax_tiles` with other tiles.

Scores, maxima, sums and outputs are float32 and stay in the registers of a warp from the first product to the last.
``P`` and ``d_S`` are rounded to 16 bits for the second product, as in FlashAttention; the sums of ``P`` are not.
"""

import math

import numpy as np

from linattn_ref.kernels.cuda.loops.device import cuda, inlined, kernel
from linattn_ref.kernels.cuda.loops.half_tiles import (
    EDGE,
    LANES,
    ONE,
    PAIR_PITCH,
    PARTS,
    ROW_PITCH,
    WORDS,
    ZERO,
    add_results_by_pairs,
    add_rows_by_rows,
    clear,
    load_pairs,
    load_rows,
    load_vector,
    max_of_quad,
    sum_of_quad,
    write,
)
from linattn_ref.kernels.cuda.loops.online_softmax import decayed, saturated

NOTHING, LARGEST = np.float32(-math.inf), np.finfo(np.float32).max
HIGHEST, SHARE, ROW_SUM, VISIBLE = 0, 1, 2, 3  # rows of `vectors`: three of the queries, one of the keys
ROWS, COLUMNS = 0, 4  # where they begin, for the rows of a tile and for its columns


@inlined
def load_visible(t, vectors, k, key_mask, head, key):
    """``vectors[k] = 1`` for the keys of a tile that may be seen, 0 for others and beyond the end."""
    if t < EDGE:
        vectors[k, t] = 0
        if key + t < key_mask.shape[1] and key_mask[head, key + t]:
            vectors[k, t] = 1


@kernel(threads=LANES, blocks=3)
def forward_tile(q, k, v, key_mask, causal, scale, out, m, share):
    """``out (heads, N, words)``, ``m`` and ``share (heads, N)``. Grid: heads * tiles of queries, tiles of ``M``."""
    left = cuda.shared.array((EDGE, ROW_PITCH), q.dtype)
    right = cuda.shared.array((EDGE, ROW_PITCH), q.dtype)
    below = cuda.shared.array((WORDS, PAIR_PITCH), q.dtype)
    visible = cuda.shared.array((1, EDGE), m.dtype)
    acc = cuda.local.array((PARTS, 4), m.dtype)
    scores = cuda.local.array((PARTS, 4), m.dtype)
    highest = cuda.local.array(2, m.dtype)  # of the lane's two rows, as the next three
    higher = cuda.local.array(2, m.dtype)
    total = cuda.local.array(2, m.dtype)  # of the lane's own columns until the end
    factor = cuda.local.array(2, m.dtype)
    n, n_keys = q.shape[1], k.shape[1]
    count = (n + EDGE - 1) // EDGE
    head, row, first_m = cuda.blockIdx.x // count, cuda.blockIdx.x % count * EDGE, cuda.blockIdx.y * WORDS
    lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.y & 31  # so that the compiler knows them not to be negative
    t = warp * 32 + lane
    mine = row + 16 * warp + (lane >> 2)
    clear(acc)
    for r in range(2):
        highest[r] = NOTHING
        total[r] = 0
    stop = min(n_keys, row + EDGE + (n_keys - n)) if causal else n_keys
    for key in range(0, stop, EDGE):
        clear(scores)
        for first in range(0, q.shape[2], WORDS):
            if key == 0 or q.shape[2] > WORDS:  # else the queries are there still
                load_rows(t, left, q, head, row, first)
            load_rows(t, right, k, head, key, first)
            load_visible(t, visible, 0, key_mask, head, key)
            cuda.syncthreads()
            add_rows_by_rows(lane, warp, scores, left, right)
            cuda.syncthreads()
        load_pairs(t, below, v, head, key, first_m)
        last = mine + (n_keys - n) - key if causal else EDGE  # column of this tile that the lane's first row sees
        for r in range(2):
            higher[r] = highest[r]
        for j in range(PARTS):
            for e in range(4):
                c = 8 * j + 2 * (lane & 3) + (e & 1)
                seen = visible[0, c] != 0 and c <= last + 8 * (e >> 1)
                scores[j, e] = saturated(scale * scores[j, e], LARGEST) if seen else NOTHING
                higher[e >> 1] = max(higher[e >> 1], scores[j, e])
        for r in range(2):
            higher[r] = max_of_quad(higher[r])  # (1)
            factor[r] = ONE if higher[r] == highest[r] else math.exp(highest[r] - higher[r])
            highest[r] = higher[r]
            total[r] *= factor[r]
        for j in range(PARTS):
            for e in range(4):
                scores[j, e] = ZERO if scores[j, e] == NOTHING else math.exp(scores[j, e] - highest[e >> 1])
                total[e >> 1] += scores[j, e]  # (2)
                acc[j, e] = decayed(acc[j, e], factor[e >> 1])
        cuda.syncthreads()
        add_results_by_pairs(lane, acc, scores, below)  # (3)
        cuda.syncthreads()

    for r in range(2):
        total[r] = sum_of_quad(total[r])
        factor[r] = ZERO if total[r] == 0 else ONE / total[r]
        if (lane & 3) == 0 and mine + 8 * r < n and cuda.blockIdx.y == 0:
            m[head, mine + 8 * r], share[head, mine + 8 * r] = highest[r], factor[r]
    write(lane, warp, acc, factor, out, head, row, first_m)  # (4)


@inlined
def load_of_queries(t, vectors, k, m, share, row_sum, head, query):
    """To four rows of ``vectors`` what belongs to a tile of queries; any of them may be visible."""
    load_vector(t, vectors, k + HIGHEST, m, head, query)
    load_vector(t, vectors, k + SHARE, share, head, query)
    load_vector(t, vectors, k + ROW_SUM, row_sum, head, query)
    if t < EDGE:
        vectors[k + VISIBLE, t] = 1


@inlined
def load_of_keys(t, vectors, k, key_mask, head, key):
    """The same for a tile of keys: nothing is taken off their scores."""
    if t < EDGE:
        vectors[k + HIGHEST, t], vectors[k + SHARE, t], vectors[k + ROW_SUM, t] = 0, 1, 0
    load_visible(t, vectors, k + VISIBLE, key_mask, head, key)


@kernel(threads=LANES, blocks=2)
def gradient_tile(
    a, b, a_value, b_value, u, key_mask, causal, scale, m, share, row_sum, factor, d, rows_are_queries, derivative,
):  # fmt: skip
    """``d_i = factor sum_j W_ij u_j``: ``W`` is ``P`` or, if ``derivative``, ``d_S``; or the transpose of either.

    ``a, a_value`` belong to the rows and ``b, b_value`` to the columns of ``W``: ``q, d_out`` of queries, ``k, v`` of
    keys. What is subtracted for a pair is the sum of what belongs to its row and to its column, one of which is 0, and
    its share the product of both, one of which is 1. Grid: heads * tiles of rows, tiles of ``d``'s columns.
    """
    left = cuda.shared.array((EDGE, ROW_PITCH), a.dtype)
    right = cuda.shared.array((EDGE, ROW_PITCH), a.dtype)
    below = cuda.shared.array((WORDS, PAIR_PITCH), a.dtype)
    vectors = cuda.shared.array((8, EDGE), row_sum.dtype)
    acc = cuda.local.array((PARTS, 4), row_sum.dtype)
    weights = cuda.local.array((PARTS, 4), row_sum.dtype)
    product = cuda.local.array((PARTS, 4), row_sum.dtype)
    factors = cuda.local.array(2, row_sum.dtype)
    rows, columns = a.shape[1], b.shape[1]
    count = (rows + EDGE - 1) // EDGE
    head, row, first_m = cuda.blockIdx.x // count, cuda.blockIdx.x % count * EDGE, cuda.blockIdx.y * WORDS
    lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.y & 31  # so that the compiler knows them not to be negative
    t = warp * 32 + lane
    clear(acc)
    start, stop = 0, columns
    if causal and rows_are_queries:
        stop = min(columns, row + EDGE + (columns - rows))
    elif causal:
        start = max(0, row - (rows - columns)) // EDGE * EDGE
    if rows_are_queries:
        load_of_queries(t, vectors, ROWS, m, share, row_sum, head, row)
    else:
        load_of_keys(t, vectors, ROWS, key_mask, head, row)
    for column in range(start, stop, EDGE):
        lowest, highest = -EDGE, EDGE  # row i of the tile and column c see one another from i - c = lowest to highest
        if causal and rows_are_queries:
            lowest = column - row - (columns - rows)
        elif causal:
            highest = column - row + (rows - columns)
        if rows_are_queries:
            load_of_keys(t, vectors, COLUMNS, key_mask, head, column)
        else:
            load_of_queries(t, vectors, COLUMNS, m, share, row_sum, head, column)
        load_pairs(t, below, u, head, column, first_m)
        clear(weights)
        for first in range(0, a.shape[2], WORDS):
            load_rows(t, left, a, head, row, first)
            load_rows(t, right, b, head, column, first)
            cuda.syncthreads()
            add_rows_by_rows(lane, warp, weights, left, right)  # scores
            cuda.syncthreads()
        for j in range(PARTS):
            for e in range(4):
                i, c = 16 * warp + (lane >> 2) + 8 * (e >> 1), 8 * j + 2 * (lane & 3) + (e & 1)
                seen = vectors[ROWS + VISIBLE, i] * vectors[COLUMNS + VISIBLE, c] != 0
                seen = seen and lowest <= i - c and i - c <= highest
                highest_score = vectors[ROWS + HIGHEST, i] + vectors[COLUMNS + HIGHEST, c]
                weights[j, e] = max(min(scale * weights[j, e], LARGEST), -LARGEST) - highest_score if seen else NOTHING
        for j in range(PARTS):
            for e in range(4):
                i, c = 16 * warp + (lane >> 2) + 8 * (e >> 1), 8 * j + 2 * (lane & 3) + (e & 1)
                row_share = vectors[ROWS + SHARE, i] * vectors[COLUMNS + SHARE, c]
                weights[j, e] = ZERO if weights[j, e] == NOTHING else row_share * math.exp(weights[j, e])  # (5)
        if derivative:
            clear(product)
            for first in range(0, a_value.shape[2], WORDS):
                load_rows(t, left, a_value, head, row, first)
                load_rows(t, right, b_value, head, column, first)
                cuda.syncthreads()
                add_rows_by_rows(lane, warp, product, left, right)  # d_P
                cuda.syncthreads()
            for j in range(PARTS):
                for e in range(4):
                    i, c = 16 * warp + (lane >> 2) + 8 * (e >> 1), 8 * j + 2 * (lane & 3) + (e & 1)
                    product[j, e] -= vectors[ROWS + ROW_SUM, i] + vectors[COLUMNS + ROW_SUM, c]
            for j in range(PARTS):
                for e in range(4):  # a pair that does not see one another stays 0, whatever d_P is
                    weights[j, e] = weights[j, e] * product[j, e] if weights[j, e] != 0 else ZERO
        add_results_by_pairs(lane, acc, weights, below)
        cuda.syncthreads()
    for r in range(2):
        factors[r] = factor
    write(lane, warp, acc, factors, d, head, row, first_m)
