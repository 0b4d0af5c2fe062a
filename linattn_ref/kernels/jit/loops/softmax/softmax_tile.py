"""What the softmax kernels share: a tile of scores made into weights, forward and backward.

The lanes hold queries in the forward pass and keys in the backward pass; the pictures are in `softmax`.

Scores beyond the range of their dtype and NaN in what is not seen are rare, so no score is compared with the end of the
range, and weights of 0 are multiplied like others. A forward task looks at the maxima and outputs that it comes to, and
where one tells of such numbers it is done once more *carefully*: each tile saturated, and only what is not 0
multiplied. The backward pass knows from the maxima, the row sums, and each tile's keys and values.
"""

import math

import numpy as np

from linattn_ref.kernels.jit.loops.heads import side_by_side
from linattn_ref.kernels.jit.loops.inner import inner
from linattn_ref.kernels.jit.loops.simd.panel import new_panel, pack, product, zero_panel
from linattn_ref.kernels.jit.loops.simd.transposed import transpose
from linattn_ref.kernels.jit.loops.simd.vector import broadcast, fma, lanes, load, maximum, store, total, where_greater
from linattn_ref.kernels.jit.loops.simd.vector_exp import exp

KEYS = 128  # keys per tile in the forward pass: their scores, 16 KiB, stay in the first-level cache
QUERIES = 128  # queries per tile in the backward pass: p and d_s, 16 KiB each, stay near
TASKS = 8  # at least so many tasks in the backward pass, if there are as many tiles of keys
MAXIMUM, SUM = 0, 1  # rows of the panel with the running maximum and sum


@inner
def apart(scale, like):
    """A factor of -1 to 1 for queries, so that none of theirs leaves the range, and the rest, for their scores."""
    of_scores = like.dtype.type(max(abs(scale), 1))
    return scale / of_scores, of_scores


# --- Forward: a query per lane ----------------------------------------------------------------------------------------


@inner
def nothing_seen(m, like):
    """The output, transposed ``(M, queries)``, and the maximum and sum of queries that have seen no key yet."""
    out_t, state = zero_panel(m, like), zero_panel(2, like)
    state[MAXIMUM] = np.finfo(like.dtype).min  # below any score, yet exp(-inf - it) is 0, not NaN
    return out_t, state


@inner
def scores_of(scores, rows, columns, factor, careful):
    """The scores of ``rows``, by panel ``columns (D, lanes)``, times a factor."""
    product(scores, rows, columns, False)
    if factor != 1:
        for j in range(len(rows)):
            store(scores, j, load(scores, j) * broadcast(factor))
    if careful:
        saturate(scores, rows, columns)


@inner
def multiply(c, a, b, accumulate, careful):
    """`product`, or `product_of_seen`."""
    if careful:
        product_of_seen(c, a, b, accumulate)
    else:
        product(c, a, b, accumulate)


@inner
def online_softmax(scores, v, state, out_t, careful):
    """Scores to weights; maximum, sum and output so far brought to the new maximum, and the values added."""
    old_maximum = load(state, MAXIMUM)
    new_maximum = old_maximum
    for j in range(len(v)):
        new_maximum = maximum(load(scores, j), new_maximum)  # (1)
    decay, zero = exp(old_maximum - new_maximum), broadcast(scores.dtype.type(0))
    weight_sum = load(state, SUM) * decay
    for j in range(len(v)):
        weight = exp(load(scores, j) - new_maximum)
        store(scores, j, weight)
        weight_sum = weight_sum + weight  # (2)
    for m in range(out_t.shape[0]):
        store(out_t, m, where_greater(decay, zero, load(out_t, m) * decay, decay))  # 0 where all weight is lost
    store(state, MAXIMUM, new_maximum)
    store(state, SUM, weight_sum)
    multiply(out_t, v.T, scores, True, careful)  # (3)


@inner
def saturate(scores, rows, columns):
    """Scores of ``rows`` that are finite, by panel ``columns (D, lanes)`` that are, go to the end of the range."""
    largest = scores.dtype.type(np.finfo(scores.dtype).max)
    for j in range(len(rows)):
        for i in range(scores.shape[1]):
            if np.isinf(scores[j, i]) and np.isfinite(rows[j]).all() and np.isfinite(columns[:, i]).all():
                scores[j, i] = largest if scores[j, i] > 0 else -largest


@inner
def is_beyond(state, i):
    """Whether the query in lane ``i`` has met a score beyond the range, or has met no other: it may have met none."""
    return state[MAXIMUM, i] == np.inf or state[MAXIMUM, i] == np.finfo(state.dtype).min


@inner
def has_none(rows, count):
    """Whether the first so many rows, of whole Vectors, hold a NaN or infinity, perhaps of what is not seen."""
    zero = broadcast(rows.dtype.type(0))
    sums = zero
    for c in range(0, rows.shape[1], lanes(rows)):
        for i in range(count):
            sums = fma(load(rows[:, c : c + lanes(rows)], i), zero, sums)
    return total(sums) != 0  # 0 times any other number is 0


@inner
def product_of_seen(c, a, b, accumulate):
    """``c[:rows] = a @ b``, or ``+=``, without the terms in which a factor is 0, whatever the other one is."""
    for r in range(a.shape[0]):
        if not accumulate:
            c[r] = 0
        for t in range(a.shape[1]):
            if np.isfinite(a[r, t]) and a[r, t] != 0:  # the same bits as in `product`
                store(c, r, fma(broadcast(a[r, t]), load(b, t), load(c, r)))
            elif a[r, t] != 0:
                for i in range(c.shape[1]):
                    if b[t, i] != 0:
                        c[r, i] += a[r, t] * b[t, i]


@inner
def write_row(out, i, out_t, state):
    """The output of the query in lane ``i``, brought to its sum."""
    weight_sum = state[SUM, i]
    if weight_sum == 0:  # sees nothing; a NaN is not 0 and goes on
        out[:] = 0
        return
    share = out.dtype.type(1) / weight_sum
    for m in range(out.size):
        out[m] = share * out_t[m, i]  # (4)


@inner
def write_rows(out, out_t, state, row_max, shares):
    """The outputs of the first lanes, their maxima, and one over their sums, 0 for those that see nothing.

    Where rows are whole tiles, all outputs at once, transposed in registers; otherwise each by `write_row`.
    """
    whole = len(out) == lanes(out) and out.shape[1] % (lanes(out) // 2) == 0
    for i in range(len(out)):
        whole &= state[SUM, i] != 0
    if whole:
        share = broadcast(out.dtype.type(1)) / load(state, SUM)
        for m in range(out_t.shape[0]):
            store(out_t, m, share * load(out_t, m))  # (4)
        transpose(out, out_t)
    for i in range(len(out)):
        row_max[i], shares[i] = state[MAXIMUM, i], 0
        if state[SUM, i] != 0:
            shares[i] = 1 / state[SUM, i]
        if not whole:
            write_row(out[i], i, out_t, state)


# --- Backward: a key per lane -----------------------------------------------------------------------------------------


@inner
def key_panels(k, v, width, scale):
    """Of the keys of a tile: ``scale k^T (D, lanes)``, ``v^T (M, lanes)``, and ``scale k`` in panels of columns.

    In the last, rows ``c .. c + lanes`` are the columns ``c .. c + lanes`` of ``scale k (keys, width)``; ``width`` is D
    filled up to whole panels.
    """
    k_t, v_t, k_columns = new_panel(k.shape[1], k), new_panel(v.shape[1], k), new_panel(width, k)
    pack(k_t, k, scale)
    pack(v_t, v, k.dtype.type(1))
    for c in range(0, width, lanes(k)):
        pack(k_columns[c : c + lanes(k)], k[:, c : c + lanes(k)].T, scale)
    return k_t, v_t, k_columns


@inner(forceinline=True)
def weigh(p, d_s, i, score, shift, share, row_sum, careful):
    """The probabilities of row ``i``'s scores to ``p``, and from the gradients in ``d_s`` those of the scores."""
    weight = broadcast(share) * exp(score - broadcast(shift))  # (5)
    if careful:  # a row of NaN has no weight where it sees nothing
        lowest = broadcast(p.dtype.type(np.finfo(p.dtype).min))
        weight = where_greater(lowest, score, broadcast(p.dtype.type(0)), weight)
    store(p, i, weight)
    d_score = weight * (load(d_s, i) - broadcast(row_sum))
    store(d_s, i, where_greater(weight, broadcast(p.dtype.type(0)), d_score, weight))  # 0 without weight, whatever d_p


@inner
def hide_masked(scores, bias):
    """Before a bias of ``-inf`` is added to scores that may be NaN."""
    for i in range(scores.shape[1]):
        if bias[0, i] == -np.inf:
            scores[:, i] = -np.inf


@inner
def add_gradients(q, d_out, p, d_s, k_columns, keys, d_q, d_k_t, d_v_t, careful):
    """What a tile of ``p`` and ``d_s (queries, lanes)`` gives to the gradients of its queries and ``keys`` keys."""
    multiply(d_v_t, d_out.T, p, True, careful)
    multiply(d_k_t, q.T, d_s, True, careful)
    for c in range(0, d_q.shape[1], lanes(q)):
        some_d_q, some_k = d_q[:, c : c + lanes(q)], k_columns[c : c + lanes(q)]
        multiply(some_d_q, d_s[: q.shape[0], :keys], some_k, True, careful)


@inner
def mask_bias(key_mask, like):
    """A panel of one row: 0 for a key that may be seen, ``-inf`` for a masked one and in the lanes without a key."""
    bias = new_panel(1, like)
    bias[0] = -np.inf
    for j in range(key_mask.size):
        if key_mask[j]:
            bias[0, j] = 0
    return bias


# --- Arrays in ------------------------------------------------------------------------------------------------------


def rows_to_weigh(m, share, d_out, out, q):
    """What `weigh` takes of each row, ``(heads, N)`` each, and whether that has to be done carefully.

    The largest score, one over the sum of weights, and ``rowsum(d_out * out)``.
    """
    row_sum = np.einsum("...nm,...nm->...n", d_out, *side_by_side(out))  # (6)
    blind = share == 0
    careful = bool((np.isfinite(m) & (abs(m) > np.finfo(m.dtype).max / 2) & ~blind).any())
    careful |= not np.isfinite(row_sum).all()
    careful |= bool(blind.any()) and not np.isfinite(q[blind]).all()  # any other query of NaN has sums of NaN
    return *(np.ascontiguousarray(x).reshape(-1, out.shape[-2]) for x in (m, share, row_sum)), careful


def scaled_first(q, scale):
    """A copy ``scale q``, rounded as in the forward pass, and 1; ``q`` and ``scale`` where no rounding is at stake.

    With a power of 2, ``scale k`` is exact. Otherwise a score would have two values, some ``score * eps`` apart, and
    its weight would be wrong by a factor, the exponential of that. A scale above 1 is that of the scores (`apart`).
    The third is what is left to multiply ``d_q`` by.
    """
    if abs(scale) > 1:
        return q, scale, abs(scale)
    return (q, scale, 1.0) if math.frexp(scale)[0] == 0.5 else (q * q.dtype.type(scale), 1.0, scale)


def room_for_shares(d_q, heads, tiles):
    """The number of tasks of a head that has so many tiles, and where they add up their shares of ``d_q``.

    That is ``(..., tasks, N, D)`` with columns for whole panels; one task's share is ``d_q`` itself if its columns fill
    panels.
    """
    *leading, n, width = d_q.shape
    tasks = min(-(-TASKS // max(heads, 1)), tiles)
    whole = -(-width // lanes(d_q)) * lanes(d_q)
    if (tasks, whole) == (1, width):
        return tasks, d_q[..., None, :, :]
    return tasks, np.empty((*leading, tasks, n, whole), d_q.dtype)


def add_shares(d_q, shares, left):
    """``d_q`` from the shares, in their order, times what is ``left`` of the scale."""
    if shares.base is not d_q:
        width = d_q.shape[-1]
        d_q[...] = shares[..., 0, :, :width]
        for task in range(1, shares.shape[-3]):
            d_q += shares[..., task, :, :width]
    if left != 1:
        d_q *= left


def flat_mask(key_mask, k):
    """``(heads, L)``; all True where there is no mask."""
    shape = k.shape[:-1]
    mask = np.ones(shape, np.bool_) if key_mask is None else np.array(np.broadcast_to(key_mask, shape), order="C")
    return mask.reshape(-1, shape[-1])
