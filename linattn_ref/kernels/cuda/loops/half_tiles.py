"""What the kernels for bfloat16 and float16 share: sizes, tiles of words in shared memory, products on tensor cores.

A block of ``WARPS`` warps makes a tile of ``EDGE x EDGE`` numbers. Warp ``w`` has rows ``16 w ... 16 w + 15`` of it, as
``PARTS`` results of `tensor_cores.multiply_add` side by side: in each lane ``acc (PARTS, 4)``, where, with
``g = lane // 4`` and ``t = lane % 4``::

    acc[j, e] is at row 16 w + g + 8 (e // 2), column 8 j + 2 t + e % 2

An operand is in shared memory in words, pairs of neighbours along the side that is summed over::

    rows   (EDGE, ROW_PITCH)     rows[i, w]  = x[i, 2 w], x[i, 2 w + 1]      a in a b^T, b in a b^T, a in a s
    pairs  (WORDS, PAIR_PITCH)   pairs[w, j] = x[2 w, j], x[2 w + 1, j]      s in a s, both in b^T u

The pitches are such that the 32 words a warp reads at a time are in 32 banks: 4 more than a multiple of 8 where ``g``
counts rows, 8 more than a multiple of 16 where ``t`` does.

Loads of words are written for the compiler: a fixed number of rounds without a branch, so that all of a thread's words
are on their way at the same time.

Inputs and outputs are ``(heads, N, words)``, with a 0 as last number where a width is odd (`half_words`).

As in `tile`, functions take the indices of their thread; a test sets ``WARPS, EDGE, PARTS, STEPS, WORDS, LANES,
ROUNDS`` of ``2, 32, 4, 2, 16, 64, 8``.
"""

import numpy as np

from linattn_ref.kernels.cuda.loops.device import NATURAL, inlined
from linattn_ref.kernels.cuda.loops.tensor_cores import firsts, here, multiply_add, of_lane, pack, seconds

WARPS = 4
EDGE = 64  # 16 WARPS; rows and columns of a tile, and rows of a chunk
PARTS = 8  # EDGE / 8
STEPS = 4  # EDGE / 16
WORDS = 32  # EDGE / 2
ROW_PITCH = 36  # WORDS + 4
PAIR_PITCH = 72  # EDGE + 8
LANES = 128  # 32 WARPS, all threads of a block
WARP_BLOCK = (32, WARPS)
AT_ONCE = 4  # LANES / WORDS, rows of words that the threads of a block load at a time
ROUNDS = 16  # EDGE / AT_ONCE
ZERO, ONE = np.float32(0), np.float32(1)


def edges(length):
    """How many tiles cover ``length``."""
    return -(-length // EDGE)


# --- From memory to shared memory -----------------------------------------------------------------------------------


@inlined
def load_rows(t, rows, x, head, row, first):
    """``EDGE`` rows and ``WORDS`` words of ``x[head]`` from ``(row, first)`` on; 0 beyond its end."""
    t = here(t) & NATURAL
    head, row, first, w = head & NATURAL, row & NATURAL, first & NATURAL, t % WORDS
    stop = min(EDGE, x.shape[1] - row) if first + w < x.shape[2] else 0
    c = first + (w if stop > 0 else 0)
    for r in range(ROUNDS):
        i = t // WORDS + AT_ONCE * r
        word = x[head, row + (i if i < stop else 0), c]  # the loads wait neither for a test nor for one another
        rows[i, w] = word if i < stop else 0


@inlined
def load_pairs(t, pairs, x, head, row, first):
    """The same as pairs of rows."""
    t = here(t) & NATURAL
    head, row, first, w = head & NATURAL, row & NATURAL, first & NATURAL, t % WORDS
    stop = min(EDGE, x.shape[1] - row) if first + w < x.shape[2] else 0
    c = first + (w if stop > 0 else 0)
    for r in range(ROUNDS // 2):
        p = t // WORDS + AT_ONCE * r
        upper = x[head, row + (2 * p if 2 * p < stop else 0), c]
        lower = x[head, row + (2 * p + 1 if 2 * p + 1 < stop else 0), c]
        upper, lower = upper if 2 * p < stop else 0, lower if 2 * p + 1 < stop else 0
        pairs[p, 2 * w], pairs[p, 2 * w + 1] = firsts(upper, lower), seconds(upper, lower)


@inlined
def load_vector(t, vector, k, x, head, first):
    """``vector[k] = x[head, first : first + EDGE]``, float32; 0 beyond its end."""
    if t < EDGE:
        vector[k, t] = 0
        if first + t < x.shape[1]:
            vector[k, t] = x[head, first + t]


# --- Products -------------------------------------------------------------------------------------------------------


@inlined
def clear(acc):
    for j in range(PARTS):
        for e in range(4):
            acc[j, e] = 0


@inlined
def add_part(acc, j, a0, a1, a2, a3, b0, b1):
    """One instruction: the lane's four numbers of part ``j`` and what the words of both operands add to them."""
    acc[j, 0], acc[j, 1], acc[j, 2], acc[j, 3] = multiply_add(
        acc[j, 0], acc[j, 1], acc[j, 2], acc[j, 3], a0, a1, a2, a3, b0, b1
    )


@inlined
def add_rows_by_rows(lane, warp, acc, a, b):
    """``acc += a b^T``, of two arrays of rows, or of what reads like one: the transpose of an array of pairs."""
    g, t = lane >> 2, lane & 3
    i = 16 * warp + g
    for k in range(STEPS):
        w = 8 * k + t
        a0, a1, a2, a3 = a[i, w], a[i + 8, w], a[i, w + 4], a[i + 8, w + 4]
        for j in range(PARTS):
            add_part(acc, j, a0, a1, a2, a3, b[8 * j + g, w], b[8 * j + g, w + 4])


@inlined
def add_results_by_pairs(lane, acc, p, u):
    """``acc += p u``: ``p`` the results of another product, rounded to 16 bits, which have no way to go for it."""
    g, t = lane >> 2, lane & 3
    for k in range(STEPS):
        w = 8 * k + t
        a0, a1 = pack(p[2 * k, 0], p[2 * k, 1], u.dtype), pack(p[2 * k, 2], p[2 * k, 3], u.dtype)
        a2, a3 = pack(p[2 * k + 1, 0], p[2 * k + 1, 1], u.dtype), pack(p[2 * k + 1, 2], p[2 * k + 1, 3], u.dtype)
        for j in range(PARTS):
            add_part(acc, j, a0, a1, a2, a3, u[w, 8 * j + g], u[w + 4, 8 * j + g])


# --- Rows of results ------------------------------------------------------------------------------------------------


@inlined
def sum_of_quad(x):
    """The sum of the four lanes that have the same rows."""
    x += of_lane(x, 1)
    return x + of_lane(x, 2)


@inlined
def max_of_quad(x):
    x = max(x, of_lane(x, 1))
    return max(x, of_lane(x, 2))


@inlined
def write(lane, warp, acc, factor, out, head, row, first):
    """The tile ``acc`` to words of ``out``, the lane's two rows multiplied by ``factor (2,)``."""
    head, i, w = head & NATURAL, (row & NATURAL) + 16 * warp + (lane >> 2), (first & NATURAL) + (lane & 3)
    for j in range(PARTS):
        if i < out.shape[1] and w + 4 * j < out.shape[2]:
            out[head, i, w + 4 * j] = pack(factor[0] * acc[j, 0], factor[0] * acc[j, 1], out.dtype)
    for j in range(PARTS):
        if i + 8 < out.shape[1] and w + 4 * j < out.shape[2]:
            out[head, i + 8, w + 4 * j] = pack(factor[1] * acc[j, 2], factor[1] * acc[j, 3], out.dtype)
