"""LSH attention in Numba: `linattn_ref.attention.reformer` with a lane for every query, or every key.

Round after round, and within a round in tasks of some hundred sorted tokens, whose rows are fetched by their numbers
from wherever they lie: `lsh_runs`. So heads may have any strides. A pair that meets in several rounds counts in the
first of them alone, `lsh_meet`.
"""

import numpy as np
from numba import get_num_threads

from linattn_ref.kernels.jit.loops.entrance import check_indices
from linattn_ref.kernels.jit.loops.heads import give, new_like, side_by_side, table_of, to_write
from linattn_ref.kernels.jit.loops.rows import as_heads, without_gaps
from linattn_ref.kernels.jit.loops.softmax.softmax_tile import rows_to_weigh, scaled_first
from linattn_ref.kernels.jit.loops.sparse.lsh_meet import check_length
from linattn_ref.kernels.jit.loops.sparse.lsh_runs import backward_round, forward_round, run_length

__all__ = ["backward", "forward"]


def forward(q, k, v, order, seen, chunk, causal, scale, *, out=None):
    """Softmax attention to all tokens that are met in any round: the output and two numbers per row.

    Parameters
    ----------
    q, k, v : ndarray, ``(..., N, D)``, ``(..., N, D)``, ``(..., N, M)``
    order : ndarray of integers ``(..., rounds, N)``
        The tokens in each round's sorted order: a permutation.
    seen : ndarray of integers ``(...)``
        How many tokens take part: the first so many of each order.
    chunk : int
        ``C``.
    causal : bool
        Token ``i`` sees tokens ``j < i``; nobody sees itself.
    scale : float
    out : ndarray ``(..., N, M)``, optional
        To be written to.

    Returns
    -------
    out : ndarray ``(..., N, M)``
    m, share : ndarray ``(..., N)``
        The largest score, and one over the sum of weights, which is 0 for a token that sees nobody, whose output is 0.
    """
    check_length(q)
    q, k, v = side_by_side(q, k, v)
    order, seen = as_heads(order), without_gaps(seen, np.int64).reshape(-1)
    chunks = _chunks(order, chunk, q.dtype)
    written = to_write(out, v.shape, v.dtype)
    written[...] = 0
    row_max = np.full((len(order), v.shape[-2]), np.finfo(q.dtype).min, q.dtype)  # (heads, N), below any score
    row_sum = np.zeros_like(row_max)  # (heads, N)
    table, runs = table_of(q, k, v, written), -(-v.shape[-2] // run_length.py_func(chunk))
    for some in _heads_at_a_time(order, chunk):
        who, sums = (order[some], chunks[some], seen[some]), (row_max[some], row_sum[some])
        for r in range(order.shape[1]):
            forward_round(len(who[0]) * runs, r, table, some.start, *who, chunk, causal, q.dtype.type(scale), *sums)
    some = row_sum != 0  # not "> 0": a NaN must stay one
    written /= np.where(some, row_sum, q.dtype.type(1)).reshape(*v.shape[:-1], 1)
    share = np.divide(1, row_sum, out=row_sum, where=some)
    return give(out, written), row_max.reshape(v.shape[:-1]), share.reshape(v.shape[:-1])


def backward(d_out, q, k, v, out, m, share, order, seen, chunk, causal, scale):
    """Gradients of :func:`forward`: ``d_q``, ``d_k``, ``d_v``, shaped like their inputs."""
    check_length(q)
    d_out, q, k, v = side_by_side(d_out, q, k, v)
    order, seen = as_heads(order), without_gaps(seen, np.int64).reshape(-1)
    shift, share, row_sum, careful = rows_to_weigh(m, share, d_out, out, q)
    chunks = _chunks(order, chunk, q.dtype)
    d_q, d_k, d_v = new_like(q, k, v)
    q, rest, _ = scaled_first(q, scale)
    for x in (d_q, d_k, d_v):
        x[...] = 0
    table, runs = table_of(d_out, q, k, v, d_q, d_k, d_v), -(-v.shape[-2] // run_length.py_func(chunk))
    options = chunk, causal, q.dtype.type(rest)
    for some in _heads_at_a_time(order, chunk):
        who, rows = (order[some], chunks[some], seen[some]), (shift[some], share[some], row_sum[some])
        for r in range(order.shape[1]):
            for parity in (0, 1):
                tasks = len(who[0]) * ((runs + 1 - parity) // 2)
                backward_round(tasks, r, parity, table, some.start, *who, *options, *rows, careful)
    if rest != scale:
        d_q *= scale
    return d_q, d_k, d_v


def _heads_at_a_time(order, chunk):
    """Slices of heads: only so many that each thread has a few runs, so that rows stay in the cache for all rounds."""
    heads, _, n = order.shape
    some = max(1, 4 * get_num_threads() * run_length.py_func(chunk) // n)
    return [slice(first, first + some) for first in range(0, heads, some)]


# --- Arrays in ------------------------------------------------------------------------------------------------------


def _chunks(order, chunk, dtype):
    """The chunk of every token in every round, ``(heads, rounds, N)``."""
    chunks = np.empty(order.shape, dtype)
    check_indices("order", order, order.shape[2])  # from the end it would count negative ones
    numbers = (np.arange(order.shape[2]) // chunk).astype(dtype)  # (N,) by rank
    np.put_along_axis(chunks, order, np.broadcast_to(numbers, order.shape), axis=-1)
    return chunks
