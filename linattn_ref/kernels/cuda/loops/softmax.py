"""Softmax attention on a GPU: `linattn_ref.attention.online_softmax`, a block for every tile of queries, or of keys.

The formulas (1)-(6) are the page's; here is who computes what. Forward, a block has ``TILE`` queries of one head
and ``TILE`` columns of ``V``, and goes over the keys a tile at a time. Scores are made in registers and become weights
there; the maximum of a row, of which ``SIDE`` threads have a part each, goes through shared memory; the weights go into
the square ``tile`` and are multiplied with ``V``.

Backward, with ``P_ij = exp(a_ij - log_sum_exp_i)`` and ``d_S = P * (d_out V^T - row_sum)``, each gradient is a sum over
the other side of the matrix, and one kernel makes all three, each number by one block, in one order::

    gradient    a row is    weights      times
    d_v         a key       P^T          d_out
    d_k         a key       d_S^T        scale q
    d_q         a query     d_S          scale k

That is 7 products in place of the 5 of a kernel that adds to ``d_q`` from many blocks at the same time, in an order
that changes from run to run.

A width above ``TILE`` is dealt out to several blocks, which make the same scores.

Arrays of bfloat16 and float16 go to `half_softmax`, which does the same on tensor cores.

References
----------
Dao et al. (2022), "FlashAttention", Algorithms 1 and 4.
Dao (2023), "FlashAttention-2", section 3.2 (a block for every tile of queries).
"""

import numpy as np

from linattn_ref.kernels.cuda.loops import half_softmax
from linattn_ref.kernels.cuda.loops.arrays import Call, dtype_of, on_gpu
from linattn_ref.kernels.cuda.loops.half_words import format_of
from linattn_ref.kernels.cuda.loops.rows import divided_where_large, dot_rows, filled, mask_of, rounds_a_sum_away
from linattn_ref.kernels.cuda.loops.softmax_tiles import forward_tile, gradient_tile
from linattn_ref.kernels.cuda.loops.tile import BLOCK, tiles

__all__ = ["backward", "dtype_of", "forward", "on_gpu"]


def forward(q, k, v, key_mask, causal, scale):
    """Output and row log-sum-exp of softmax attention.

    Parameters
    ----------
    q, k, v : array, ``(..., N, D)``, ``(..., L, D)``, ``(..., L, M)``
    key_mask : array of bool ``(..., L)`` or None
    causal : bool
        Query ``i`` sees keys ``j <= i + (L - N)``.
    scale : float

    Returns
    -------
    out : array ``(..., N, M)``
    log_sum_exp : array ``(..., N)``, float32 also beside 16-bit arrays
        ``-inf`` for a query that sees nothing, whose output is 0.
    """
    if format_of(q):
        return half_softmax.forward(q, k, v, key_mask, causal, scale)
    call, dtype = Call(q.shape[:-2], q=q, k=k, v=v, key_mask=key_mask), dtype_of(q)
    q, k, v = call.flat(q), call.flat(k), call.flat(v)
    n, m = q.shape[1], v.shape[2]
    out, log_sum_exp = call.empty((n, m), dtype), call.empty((n,), dtype)
    grid = call.heads * tiles(n), tiles(m)
    options = mask_of(call, key_mask, k), bool(causal), dtype.type(scale), np.finfo(dtype).max
    call.launch(forward_tile, grid, BLOCK, q, k, v, *options, out, log_sum_exp)
    return call.results(out, log_sum_exp)


def backward(d_out, q, k, v, out, log_sum_exp, key_mask, causal, scale):
    """Gradients of :func:`forward`: ``d_q (..., N, D)``, ``d_k (..., L, D)``, ``d_v (..., L, M)``."""
    if format_of(q):
        return half_softmax.backward(d_out, q, k, v, out, log_sum_exp, key_mask, causal, scale)
    arrays = {"q": q, "k": k, "v": v, "out": out, "log_sum_exp": log_sum_exp, "key_mask": key_mask}
    call, dtype = Call(q.shape[:-2], d_out=d_out, **arrays), dtype_of(q)
    g, q, k, v = call.flat(d_out), call.flat(q), call.flat(k), call.flat(v)
    log_sum_exp, out = call.flat(log_sum_exp, axes=1), call.flat(out)
    d_q, d_k, d_v = (call.empty(x.shape[1:], dtype) for x in (q, k, v))
    mask, causal, scale = mask_of(call, key_mask, k), bool(causal), dtype.type(scale)

    def gradient(d, a, b, a_value, b_value, u, factor, *, rows_are_queries, derivative, row_sum, above=-1):
        grid = call.heads * tiles(d.shape[1]), tiles(d.shape[2])
        scores = mask, causal, scale, np.finfo(dtype).max, log_sum_exp, row_sum
        modes = rows_are_queries, derivative, dtype.type(above)
        call.launch(gradient_tile, grid, BLOCK, a, b, a_value, b_value, u, *scores, factor, d, *modes)

    return gradients(call, gradient, (d_q, d_k, d_v), g, q, k, v, out, log_sum_exp, scale)


def gradients(call, add, d, g, q, k, v, out, log_sum_exp, scale):
    """The gradients ``d``, of the table above, each written or added to by ``add``, which launches its kernel."""
    (d_q, d_k, d_v), dtype = d, dtype_of(q)
    sums, ones, one = filled(call, (q.shape[1], 1), dtype, 0), filled(call, (k.shape[1], 1), dtype, 1), dtype.type(1)
    weights, above = {"derivative": False, "row_sum": log_sum_exp}, rounds_a_sum_away(dtype)  # P takes nothing off
    add(sums, q, k, g, v, ones, one, rows_are_queries=True, **weights, above=above)
    g = divided_where_large(call, g, sums, log_sum_exp, above)
    derivatives = {"derivative": True, "row_sum": dot_rows(call, g, out)}  # (6)  (heads, N)
    add(d_v, k, q, v, g, g, one, rows_are_queries=False, **weights)
    add(d_k, k, q, v, g, q, scale, rows_are_queries=False, **derivatives)
    add(d_q, q, k, g, v, k, scale, rows_are_queries=True, **derivatives)
    return call.results(d_q, d_k, d_v)
