"""The kernels of the causal product for bfloat16 and float16, on tensor cores: `causal_chunks` with other tiles.

The formulas are those of `causal_chunks`; `causal_states.scan` is used as it is. Rows ``u_j`` of 16 bits are not
divided by a denominator beforehand but multiplied by a weight ``w_j`` where they are read. States, sums and
denominators are float32. To 16 bits are rounded, because they go into another product: the masked scores within a
chunk, the state as a chunk reads it, and the weighted rows ``w_j u_j`` of which states are made; the first two as in
flash-linear-attention's Triton kernels. The denominator is a product in float32 throughout.
"""

from linattn_ref.kernels.cuda.loops.device import cuda, inlined, kernel
from linattn_ref.kernels.cuda.loops.half_tiles import (
    AT_ONCE,
    EDGE,
    LANES,
    NATURAL,
    ONE,
    PAIR_PITCH,
    PARTS,
    ROUNDS,
    ROW_PITCH,
    WORDS,
    ZERO,
    add_results_by_pairs,
    add_rows_by_rows,
    clear,
    load_pairs,
    load_rows,
    load_vector,
    sum_of_quad,
    write,
)
from linattn_ref.kernels.cuda.loops.tensor_cores import here, high, low, pack

Z, WEIGHT, BESIDE = 0, 1, 2  # rows of `vectors`: one of a state's columns, two of a chunk's rows


@inlined
def load_state(t, pairs, states, head, chunk, row, first, transposed):
    """``EDGE`` rows and columns of a state or its transpose, from ``(row, first)`` on, rounded, as pairs of rows."""
    t = here(t) & NATURAL
    head, chunk, row, first = head & NATURAL, chunk & NATURAL, row & NATURAL, first & NATURAL
    if transposed:  # neighbours read neighbours, either way
        p = t % WORDS
        m, stop = row + 2 * p, states.shape[2] - first if row + 2 * p < states.shape[3] else 0
        for r in range(ROUNDS):
            j = t // WORDS + AT_ONCE * r
            x = states[head, chunk, first + j, m] if j < stop else ZERO
            y = states[head, chunk, first + j, m + 1] if j < stop and m + 1 < states.shape[3] else ZERO
            pairs[p, j] = pack(x, y, pairs.dtype)
    else:
        j = t % EDGE
        m, stop = first + j, states.shape[2] - row if first + j < states.shape[3] else 0
        for r in range(ROUNDS):
            p = t // EDGE + AT_ONCE // 2 * r
            x = states[head, chunk, row + 2 * p, m] if 2 * p < stop else ZERO
            y = states[head, chunk, row + 2 * p + 1, m] if 2 * p + 1 < stop else ZERO
            pairs[p, j] = pack(x, y, pairs.dtype)


@inlined
def weigh_pairs(t, pairs, vectors, k):
    """Each row of ``pairs`` times its number in ``vectors[k]``; rounded again."""
    j = t % EDGE
    for e in range(t // EDGE, WORDS, AT_ONCE // 2):
        p = e & NATURAL
        x, y = low(pairs[p, j]), high(pairs[p, j])
        pairs[p, j] = pack(vectors[k, 2 * p] * x, vectors[k, 2 * p + 1] * y, pairs.dtype)


@inlined
def mask_scores(lane, warp, scores, backwards):
    """``scores_ij`` where row ``i`` sees row ``j``, else 0."""
    for j in range(PARTS):
        for e in range(4):
            i, c = 16 * warp + (lane >> 2) + 8 * (e >> 1), 8 * j + 2 * (lane & 3) + (e & 1)
            scores[j, e] = scores[j, e] if (c >= i if backwards else c <= i) else ZERO


@inlined
def weigh_scores(lane, scores, vectors):
    """``scores_ij w_j``, 0 for a weight of 0."""
    for j in range(PARTS):
        for e in range(4):
            c = 8 * j + 2 * (lane & 3) + (e & 1)
            scores[j, e] = scores[j, e] * vectors[WEIGHT, c] if vectors[WEIGHT, c] != 0 else ZERO


@kernel(threads=LANES, blocks=4)
def sums(b, u, weight, beside, states, z, weighted):
    """``states[head, chunk] = sum_j w_j b_j u_j^T (C, M)``, and ``z[head, chunk] = sum_j w_j beside_j b_j (C,)``.

    Grid: heads * chunks, tiles of ``C``, tiles of ``M``.
    """
    left = cuda.shared.array((WORDS, PAIR_PITCH), b.dtype)
    right = cuda.shared.array((WORDS, PAIR_PITCH), b.dtype)
    vectors = cuda.shared.array((3, EDGE), weight.dtype)
    acc = cuda.local.array((PARTS, 4), weight.dtype)
    chunks = states.shape[1]
    head, chunk = cuda.blockIdx.x // chunks, cuda.blockIdx.x % chunks
    first_c, first_m = cuda.blockIdx.y * EDGE, cuda.blockIdx.z * EDGE
    lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.y & 31  # so that the compiler knows them not to be negative
    t = warp * 32 + lane
    clear(acc)
    load_pairs(t, left, b, head, chunk * EDGE, cuda.blockIdx.y * WORDS)
    load_pairs(t, right, u, head, chunk * EDGE, cuda.blockIdx.z * WORDS)
    load_vector(t, vectors, WEIGHT, weight, head, chunk * EDGE)
    load_vector(t, vectors, BESIDE, beside, head, chunk * EDGE)
    cuda.syncthreads()
    if weighted:
        weigh_pairs(t, right, vectors, WEIGHT)
        cuda.syncthreads()
    add_rows_by_rows(lane, warp, acc, left.T, right.T)
    for j in range(PARTS):
        for e in range(4):
            c, m = first_c + 16 * warp + (lane >> 2) + 8 * (e >> 1), first_m + 8 * j + 2 * (lane & 3) + (e & 1)
            if c < states.shape[2] and m < states.shape[3]:
                states[head, chunk, c, m] = acc[j, e]
    if t < EDGE and cuda.blockIdx.z == 0 and first_c + t < z.shape[2]:
        total = ZERO
        for p in range(WORDS):
            total += vectors[WEIGHT, 2 * p] * vectors[BESIDE, 2 * p] * low(left[p, t])
            total += vectors[WEIGHT, 2 * p + 1] * vectors[BESIDE, 2 * p + 1] * high(left[p, t])
        z[head, chunk, first_c + t] = total


@kernel(threads=LANES, blocks=2)
def forward(a, b, u, states, z, eps, out, denominator, normalised):
    """``out (heads, N, words)`` and, if ``normalised``, what it is divided by. Grid: heads * chunks, tiles of ``M``."""
    left = cuda.shared.array((EDGE, ROW_PITCH), a.dtype)
    right = cuda.shared.array((EDGE, ROW_PITCH), a.dtype)
    below = cuda.shared.array((WORDS, PAIR_PITCH), a.dtype)
    some_z = cuda.shared.array(EDGE, z.dtype)
    scores = cuda.local.array((PARTS, 4), z.dtype)
    acc = cuda.local.array((PARTS, 4), z.dtype)
    total = cuda.local.array(2, z.dtype)  # of the lane's two rows
    n, chunks = a.shape[1], states.shape[1]
    head, chunk, first_m = cuda.blockIdx.x // chunks, cuda.blockIdx.x % chunks, cuda.blockIdx.y * WORDS
    row = chunk * EDGE
    lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.y & 31  # so that the compiler knows them not to be negative
    t = warp * 32 + lane
    i = 16 * warp + (lane >> 2)
    clear(scores)
    clear(acc)
    for r in range(2):
        total[r] = 0
    for first in range(0, a.shape[2], WORDS):
        load_rows(t, left, a, head, row, first)
        load_rows(t, right, b, head, row, first)
        load_state(t, below, states, head, chunk, 2 * first, 2 * first_m, False)
        if t < EDGE:
            some_z[t] = 0
            if 2 * first + t < z.shape[2]:
                some_z[t] = z[head, chunk, 2 * first + t]
        cuda.syncthreads()
        add_rows_by_rows(lane, warp, scores, left, right)  # a b^T
        add_rows_by_rows(lane, warp, acc, left, below.T)  # a S
        if normalised:
            for w in range(lane & 3, WORDS, 4):
                for r in range(2):
                    total[r] += low(left[i + 8 * r, w]) * some_z[2 * w]
                    total[r] += high(left[i + 8 * r, w]) * some_z[2 * w + 1]
        cuda.syncthreads()

    load_pairs(t, below, u, head, row, first_m)
    mask_scores(lane, warp, scores, False)
    cuda.syncthreads()
    if normalised:
        for j in range(PARTS):
            for e in range(4):
                total[e >> 1] += scores[j, e]
    add_results_by_pairs(lane, acc, scores, below)
    for r in range(2):
        if normalised:
            total[r] = sum_of_quad(total[r]) + eps
            if (lane & 3) == 0 and row + i + 8 * r < n and cuda.blockIdx.y == 0:
                denominator[head, row + i + 8 * r] = total[r]
            total[r] = ZERO if total[r] == 0 else ONE / total[r]
        else:
            total[r] = ONE
    write(lane, warp, acc, total, out, head, row, first_m)


@kernel(threads=LANES, blocks=2)
def gradient(a, b, u, a_beside, b_beside, weight, scale, states, z, out, backwards, transposed):
    """``out_i = scale_i (sum_j (a_i . b_j + a'_i b'_j) w_j u_j + a_i S + a'_i z)`` over ``j <= i``, ``'`` for beside.

    ``backwards`` stands for ``j >= i``, ``transposed`` for ``S^T`` in place of ``S``; ``z`` belongs to the columns of
    either. Grid: heads * chunks, tiles of ``out``'s columns.
    """
    left = cuda.shared.array((EDGE, ROW_PITCH), a.dtype)
    right = cuda.shared.array((EDGE, ROW_PITCH), a.dtype)
    below = cuda.shared.array((WORDS, PAIR_PITCH), a.dtype)
    vectors = cuda.shared.array((3, EDGE), weight.dtype)
    scores = cuda.local.array((PARTS, 4), weight.dtype)
    acc = cuda.local.array((PARTS, 4), weight.dtype)
    factor = cuda.local.array(2, weight.dtype)  # of the lane's two rows, as the next one
    mine = cuda.local.array(2, weight.dtype)
    n, chunks = a.shape[1], states.shape[1]
    head, chunk, first_m = cuda.blockIdx.x // chunks, cuda.blockIdx.x % chunks, cuda.blockIdx.y * WORDS
    row = chunk * EDGE
    lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.y & 31  # so that the compiler knows them not to be negative
    t = warp * 32 + lane
    clear(scores)
    clear(acc)
    load_vector(t, vectors, WEIGHT, weight, head, row)
    load_vector(t, vectors, BESIDE, b_beside, head, row)
    if t < EDGE:
        vectors[Z, t] = 0
        if 2 * first_m + t < z.shape[2]:
            vectors[Z, t] = z[head, chunk, 2 * first_m + t]
    for r in range(2):
        i = row + 16 * warp + (lane >> 2) + 8 * r
        mine[r] = a_beside[head, i] if i < n else ZERO
        factor[r] = scale[head, i] if i < n else ZERO
    for first in range(0, a.shape[2], WORDS):
        load_rows(t, left, a, head, row, first)
        load_rows(t, right, b, head, row, first)
        load_state(t, below, states, head, chunk, 2 * first, 2 * first_m, transposed)
        cuda.syncthreads()
        add_rows_by_rows(lane, warp, scores, left, right)
        add_rows_by_rows(lane, warp, acc, left, below.T)
        cuda.syncthreads()

    load_pairs(t, below, u, head, row, first_m)
    for j in range(PARTS):
        for e in range(4):
            c = 8 * j + 2 * (lane & 3) + (e & 1)
            scores[j, e] += mine[e >> 1] * vectors[BESIDE, c]
            acc[j, e] += mine[e >> 1] * vectors[Z, c]
    mask_scores(lane, warp, scores, backwards)
    weigh_scores(lane, scores, vectors)
    cuda.syncthreads()
    add_results_by_pairs(lane, acc, scores, below)
    write(lane, warp, acc, factor, out, head, row, first_m)
