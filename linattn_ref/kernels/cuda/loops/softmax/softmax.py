"""Softmax attention on a GPU: `linattn_ref.attention.online_softmax`, a block for every tile of queries, or of keys.

The formulas (1)-(6) are the page's; here is who computes what. Forward, a block has ``TILE`` queries of one head
and ``TILE`` columns of ``V``, and goes over the keys a tile at a time. Scores are summed up in registers and go into
the square ``tile`` in shared memory. They become weights there, and are multiplied with ``V``. ``SIDE`` threads find
the maximum of a row together (`online_softmax`).

Backward, each row of ``d_out`` is first divided by its query's sum of weights, so that ``P_ij = exp(a_ij - m_i)`` is
enough. With ``d_S = P * (d_out V^T - row_sum)`` each gradient is a sum over the other side of the matrix, and one
kernel makes all three, each number by one block, in one order::

    gradient    a row is    weights      times
    d_v         a key       P^T          d_out
    d_k         a key       d_S^T        scale q
    d_q         a query     d_S          scale k

That is 8 products in place of the 5 of a kernel that adds to ``d_q`` from many blocks at the same time, in an order
that changes from run to run.

A width above ``TILE`` is dealt out to several blocks, which make the same scores.

Arrays of bfloat16 and float16 go to `half_softmax`, which does the same on tensor cores.

References
----------
Dao et al. (2022), "FlashAttention", Algorithms 1 and 4.
Dao (2023), "FlashAttention-2", section 3.2 (a block for every tile of queries).
"""

import numpy as np

from linattn_ref.kernels.cuda.loops.arrays import Call, dtype_of
from linattn_ref.kernels.cuda.loops.half_words import format_of
from linattn_ref.kernels.cuda.loops.rows import dot_rows, mask_of, multiplied_rows
from linattn_ref.kernels.cuda.loops.softmax import half_softmax
from linattn_ref.kernels.cuda.loops.softmax.softmax_tiles import forward_tile, gradient_tile
from linattn_ref.kernels.cuda.loops.tile import BLOCK, tiles


def forward(q, k, v, key_mask, causal, scale):
    """Softmax attention: the output and two numbers per row.

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
    m, share : array ``(..., N)``, float32 also beside 16-bit arrays
        The largest score, and one over the sum of weights, which is 0 for a query that sees nothing, whose output is 0.
    """
    if format_of(q):
        return half_softmax.forward(q, k, v, key_mask, causal, scale)
    call, dtype = Call(q.shape[:-2], q=q, k=k, v=v, key_mask=key_mask), dtype_of(q)
    q, k, v = call.flat(q), call.flat(k), call.flat(v)
    n, width = q.shape[1], v.shape[2]
    out, m, share = (call.empty(shape, dtype) for shape in ((n, width), (n,), (n,)))
    grid = call.heads * tiles(n), tiles(width)
    options = mask_of(call, key_mask, k), bool(causal), dtype.type(scale), np.finfo(dtype).max
    call.launch(forward_tile, grid, BLOCK, q, k, v, *options, out, m, share)
    return call.results(out, m, share)


def backward(d_out, q, k, v, out, m, share, key_mask, causal, scale):
    """Gradients of :func:`forward`: ``d_q (..., N, D)``, ``d_k (..., L, D)``, ``d_v (..., L, M)``."""
    if format_of(q):
        return half_softmax.backward(d_out, q, k, v, out, m, share, key_mask, causal, scale)
    arrays = {"q": q, "k": k, "v": v, "out": out, "m": m, "share": share, "key_mask": key_mask}
    call, dtype = Call(q.shape[:-2], d_out=d_out, **arrays), dtype_of(q)
    g, q, k, v = call.flat(d_out), call.flat(q), call.flat(k), call.flat(v)
    m, share, out = call.flat(m, axes=1), call.flat(share, axes=1), call.flat(out)
    d_q, d_k, d_v = (call.empty(x.shape[1:], dtype) for x in (q, k, v))
    mask, causal, scale = mask_of(call, key_mask, k), bool(causal), dtype.type(scale)

    def gradient(d, a, b, a_value, b_value, u, factor, *, rows_are_queries, derivative, row_sum):
        grid = call.heads * tiles(d.shape[1]), tiles(d.shape[2])
        scores = mask, causal, scale, np.finfo(dtype).max, m, row_sum
        modes = rows_are_queries, derivative
        call.launch(gradient_tile, grid, BLOCK, a, b, a_value, b_value, u, *scores, factor, d, *modes)

    return gradients(call, gradient, (d_q, d_k, d_v), g, q, k, v, out, share, scale)


def gradients(call, add, d, g, q, k, v, out, share, scale):
    """The gradients ``d``, of the table above, each written or added to by ``add``, which launches its kernel."""
    d_q, d_k, d_v = d
    g = multiplied_rows(call, g, share)
    derivatives = {"derivative": True, "row_sum": dot_rows(call, g, out)}  # (6)  (heads, N)
    one = dtype_of(q).type(1)
    add(d_v, k, q, v, g, g, one, rows_are_queries=False, derivative=False, row_sum=share)  # row_sum is not read
    add(d_k, k, q, v, g, q, scale, rows_are_queries=False, **derivatives)
    add(d_q, q, k, g, v, k, scale, rows_are_queries=True, **derivatives)
    return call.results(d_q, d_k, d_v)
