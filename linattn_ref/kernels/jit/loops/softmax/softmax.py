"""Softmax attention in Numba: `linattn_ref.attention.online_softmax` with a lane for every query, or every key.

The formulas (1)-(6) are the page's; here is where the numbers lie. ``lanes`` numbers go through every instruction
(`vector`), and a lane never needs its neighbour, so maximum, sum and exponential take no step across lanes.

Forward: a task is ``lanes`` queries of one head, a query per lane, and runs over the keys in tiles of ``KEYS``::

           queries ->
         +-----------+       +-----------+       +-----------+
    keys | scores    |  =  K | tile      |   @   | scale Q^T | D      scores become weights in place, (1) (2)
         |           |       |           |       +-----------+
         +-----------+       +-----------+
         +-----------+       +-----------+       +-----------+
    M    | out^T     |  += V^T tile      |   @   | weights   | keys   (3), after out^T *= decay
         +-----------+       +-----------+       +-----------+

Backward: a task runs over tiles of ``lanes`` keys, a key per lane, and for each over the queries by ``QUERIES``.
``scale K^T``, ``V^T``, ``d_k^T`` and ``d_v^T`` stay put as panels; ``d_q`` is added to, tile after tile::

    p   = exp(Q (scale K^T) - m) * share  d_s = p * (d_out V^T - row_sum)      (queries, lanes)
    d_v^T += d_out^T p                    d_k^T += Q^T d_s                     (M, lanes), (D, lanes)
    d_q   += d_s (scale K)                                                     (queries, D), by panels of columns

Where the scale is no power of 2, the queries are scaled and not the keys, in a copy (`softmax_tile.scaled_first`).
Where it is above 1, ``scale Q`` could leave the range: in either pass the scores are multiplied (`softmax_tile.apart`).

That is five matrix products; with queries and keys in separate passes it would be seven. A head's keys are dealt out to
several tasks, each with a ``d_q`` of its own, where there are fewer than ``TASKS`` heads to keep the processor busy.

No array is larger than the inputs times that number of tasks. How the work is cut depends on shapes alone and every
number is written by one task, so the result is the same to the last bit for any number of threads.

References
----------
Dao et al. (2022), "FlashAttention", Algorithms 1 and 4.
"""

import math

import numpy as np

from linattn_ref.kernels.jit.loops.cache import kernel
from linattn_ref.kernels.jit.loops.heads import four_heads_of, give, head_of, new_like, side_by_side, table_of, to_write
from linattn_ref.kernels.jit.loops.inner import inner, once
from linattn_ref.kernels.jit.loops.simd.panel import new_panel, pack, product, unpack, zero_panel
from linattn_ref.kernels.jit.loops.simd.vector import keep, lanes, load, store
from linattn_ref.kernels.jit.loops.softmax import softmax_tile as shared
from linattn_ref.kernels.jit.loops.softmax.softmax_step import step

__all__ = ["backward", "forward", "step"]

# --- Forward --------------------------------------------------------------------------------------------------------


def forward(q, k, v, key_mask, causal, scale, *, out=None):
    """Softmax attention: the output and two numbers per row.

    Parameters
    ----------
    q, k, v : ndarray, ``(..., N, D)``, ``(..., L, D)``, ``(..., L, M)``
    key_mask : ndarray of bool ``(..., L)`` or None
    causal : bool
        Query ``i`` sees keys ``j <= i + (L - N)``.
    scale : float
    out : ndarray ``(..., N, M)``, optional
        To be written to.

    Returns
    -------
    out : ndarray ``(..., N, M)``
    m, share : ndarray ``(..., N)``
        The largest score, and one over the sum of weights, which is 0 for a query that sees nothing, whose output is 0.
    """
    q, k, v = side_by_side(q, k, v)
    written = to_write(out, (*q.shape[:-1], v.shape[-1]), q.dtype)
    m, share = (np.empty((math.prod(q.shape[:-2]), q.shape[-2]), q.dtype) for _ in range(2))  # (heads, N)
    table = table_of(q, k, v, written)
    tasks = len(m) * -(-q.shape[-2] // lanes(q))
    _forward(tasks, table, shared.flat_mask(key_mask, k), bool(causal), q.dtype.type(scale), m, share)
    return give(out, written), m.reshape(q.shape[:-1]), share.reshape(q.shape[:-1])


@kernel(table=("heads N D", "heads L D", "heads L M", "heads N M"), key_mask="heads L", m="heads N", share="heads N")
def _forward(task, table, key_mask, causal, scale, m, share):
    n = m.shape[1]
    width, dtype = lanes(m), m.dtype
    tiles = (n + width - 1) // width
    head, turn = task // tiles, task % tiles
    # A causal tile costs more the later it is: 0, last, 1, last - 1, ... gives neighbouring tasks equal work.
    tile = tiles - 1 - turn // 2 if turn % 2 else turn // 2
    q, k, v, out = four_heads_of(table, 0, head, dtype)
    first, results = tile * width, (out, m[head], share[head])
    if not _forward_tile(q, k, v, key_mask[head], causal, scale, first, results, False):
        _forward_tile(q, k, v, key_mask[head], causal, scale, first, results, True)


@once
def _forward_tile(q, k, v, key_mask, causal, scale, first, results, careful):
    """One head's queries ``first .. first + lanes - 1``; False if it has to be ``careful``."""
    n, n_keys, (out, m, share) = q.shape[0], k.shape[0], results
    last = min(first + lanes(q), n)
    see = first + (n_keys - n)  # the causal query in lane i sees keys j <= see + i
    end = min(n_keys, last + (n_keys - n)) if causal else n_keys
    q_t = new_panel(q.shape[1], q)  # (D, queries)
    of_queries, of_scores = shared.apart(scale, q)
    pack(q_t, q[first:last], of_queries)
    scores = new_panel(shared.KEYS, q)  # (keys, queries)
    out_t, state = shared.nothing_seen(v.shape[1], q)
    for start in range(0, end, shared.KEYS):
        stop = min(start + shared.KEYS, end)
        shared.scores_of(scores, k[start:stop], q_t, of_scores, careful)
        _hide(scores, key_mask[start:stop], causal, see - start)
        shared.online_softmax(scores, v[start:stop], state, out_t, careful)
    if not careful and shared.has_none(out_t, len(out_t)):
        return False
    for i in range(last - first):
        seen = min(see + i + 1, n_keys) if causal else n_keys
        if not careful and shared.is_beyond(state, i) and key_mask[:seen].any():
            return False
    shared.write_rows(out[first:last], out_t, state, m[first:last], share[first:last])
    return True


@inner
def _hide(scores, key_mask, causal, see):
    """``-inf`` for masked keys in all lanes, for key ``j`` in the lanes ``i`` with ``j > see + i``."""
    for j in range(key_mask.size):
        if not key_mask[j]:
            scores[j] = -np.inf
        elif causal and j > see:
            store(scores, j, keep(load(scores, j), j - see, lanes(scores), -np.inf))


# --- Backward -------------------------------------------------------------------------------------------------------


def backward(d_out, q, k, v, out, m, share, key_mask, causal, scale):
    """Gradients of :func:`forward`: ``d_q (..., N, D)``, ``d_k (..., L, D)``, ``d_v (..., L, M)``."""
    d_out, q, k, v = side_by_side(d_out, q, k, v)
    shift, share, row_sum, careful = shared.rows_to_weigh(m, share, d_out, out, q)
    d_q, d_k, d_v = new_like(q, k, v)
    q, rest, left = shared.scaled_first(q, scale)
    tasks, shares = shared.room_for_shares(d_q, len(shift), -(-k.shape[-2] // lanes(q)))
    table, key_mask = table_of(d_out, q, k, v, d_k, d_v), shared.flat_mask(key_mask, k)
    options = key_mask, bool(causal), q.dtype.type(rest), careful
    _backward(len(shift) * tasks, table, table_of(shares), tasks, shift, share, row_sum, *options)
    shared.add_shares(d_q, shares, left)
    return d_q, d_k, d_v


@kernel(
    table=("heads N M", "heads N D", "heads L D", "heads L M", "heads L D", "heads L M"),
    shares=("parts N *",),
    **dict.fromkeys(("shift", "share", "row_sum"), "heads N"),
    key_mask="heads L",
)
def _backward(task, table, shares, tasks, shift, share, row_sum, key_mask, causal, scale, careful):
    width, dtype = lanes(shift), shift.dtype
    h, part = task // tasks, task % tasks
    d_out, q, k, v = four_heads_of(table, 0, h, dtype)
    d_k, d_v, d_q = head_of(table, 4, h, dtype), head_of(table, 5, h, dtype), head_of(shares, 0, task, dtype)
    rows = (d_out, q, shift[h], share[h], row_sum[h], d_q)
    d_q[:] = 0
    for first in range(part * width, k.shape[0], tasks * width):
        _backward_tile(rows, k, v, key_mask[h], causal, scale, first, d_k, d_v, careful)


@once
def _backward_tile(rows, k, v, key_mask, causal, scale, first, d_k, d_v, careful):
    """What one head's keys ``first .. first + lanes - 1`` give to ``d_q``, and their own ``d_k`` and ``d_v``."""
    d_out, q, shift, share, row_sum, d_q = rows
    n, width, one = q.shape[0], lanes(q), q.dtype.type(1)
    last = min(first + width, k.shape[0])
    see = (k.shape[0] - n) - first  # causal query i sees the lanes j <= see + i
    keys, key_mask = last - first, key_mask[first:last]
    of_keys, of_scores = shared.apart(scale, q)
    k_t, v_t, k_columns = shared.key_panels(k[first:last], v[first:last], d_q.shape[1], of_keys)
    careful = careful or shared.has_none(k_t, len(k_t)) or shared.has_none(v_t, len(v_t))
    d_k_t, d_v_t = zero_panel(k.shape[1], q), zero_panel(v.shape[1], q)  # (D, keys), (M, keys)
    p, d_s = new_panel(shared.QUERIES, q), new_panel(shared.QUERIES, q)  # (queries, keys)
    bias = shared.mask_bias(key_mask, q)
    for start in range(max(0, -see) if causal else 0, n, shared.QUERIES):
        here = slice(start, min(start + shared.QUERIES, n))
        shared.scores_of(p, q[here], k_t, of_scores, careful)
        if careful:
            shared.hide_masked(p, bias)
        product(d_s, d_out[here], v_t, False)
        see_here = see + start if causal else width
        _weights(p, d_s, shift[here], share[here], row_sum[here], bias, see_here, careful)
        shared.add_gradients(q[here], d_out[here], p, d_s, k_columns, keys, d_q[here], d_k_t, d_v_t, careful)
    unpack(d_k[first:last], d_k_t, scale)
    unpack(d_v[first:last], d_v_t, one)


@inner
def _weights(p, d_s, shift, share, row_sum, bias, see, careful):
    """Scores to probabilities in ``p``, the gradients of both in ``d_s``; query i sees lanes <= see + i."""
    for i in range(shift.size):
        score = load(p, i) + load(bias, 0)
        if see + i + 1 < lanes(p):
            score = keep(score, 0, see + i + 1, -np.inf)
        shared.weigh(p, d_s, i, score, shift[i], share[i], row_sum[i], careful)
