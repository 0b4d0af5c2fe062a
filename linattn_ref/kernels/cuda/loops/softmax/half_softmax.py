"""Softmax attention for bfloat16 and float16, on tensor cores: `softmax` with the kernels of `half_softmax_tiles`.

Same arguments and results; ``m`` and ``share`` are float32. Tensor cores also multiply by weights of 0, and 0 times NaN
or infinity is NaN: from a key that is not masked, these also reach earlier queries of causal attention and those to
which it has no weight, if they share a tile of ``EDGE`` keys and queries. Masked keys and their values are read as 0.

The GPU has to be of compute capability 8.0 or later.
"""

import numpy as np

from linattn_ref.kernels.cuda.loops.arrays import Call
from linattn_ref.kernels.cuda.loops.half_rows import dot_rows, shown
from linattn_ref.kernels.cuda.loops.half_tiles import WARP_BLOCK, edges
from linattn_ref.kernels.cuda.loops.half_words import check_float32, check_formats, empty_words, launch, results, words
from linattn_ref.kernels.cuda.loops.rows import mask_of
from linattn_ref.kernels.cuda.loops.softmax.half_softmax_tiles import forward_tile, gradient_tile


def forward(q, k, v, key_mask, causal, scale):
    """``out (..., N, M)`` of the inputs' dtype, and ``m`` and ``share (..., N)``, float32."""
    numbers, width, like = check_formats(q=q, k=k, v=v), v.shape[-1], q
    call = Call(q.shape[:-2], q=q, k=k, v=v, key_mask=key_mask)
    q, (k, v, mask) = words(call, q), _of_keys(call, numbers, k, v, key_mask)
    out, (m, share) = empty_words(call, q.shape[1], width), (call.empty(q.shape[1:2], np.float32) for _ in range(2))
    options = mask, bool(causal), np.float32(scale)
    grid = call.heads * edges(q.shape[1]), edges(width)
    launch(call, numbers, forward_tile, grid, WARP_BLOCK, q, k, v, *options, out, m, share)
    return results(call, out, width, like), *call.results(m, share)


def backward(d_out, q, k, v, out, m, share, key_mask, causal, scale):
    """``d_q, d_k, d_v``, of the inputs' dtype."""
    numbers, inputs = check_formats(q=q, k=k, v=v, out=out, d_out=d_out), (q, k, v)
    check_float32(m=m, share=share)
    arrays = {"q": q, "k": k, "v": v, "out": out, "m": m, "share": share, "key_mask": key_mask}
    call = Call(q.shape[:-2], d_out=d_out, **arrays)
    g, q, out = (words(call, x) for x in (d_out, q, out))
    k, v, mask = _of_keys(call, numbers, k, v, key_mask)
    rows_of_queries, options = (call.flat(m, axes=1), call.flat(share, axes=1)), (mask, bool(causal), np.float32(scale))

    def gradient(rows, width, a, b, a_value, b_value, u, row_sum, factor, *modes):
        d, grid = empty_words(call, rows, width), (call.heads * edges(rows), edges(width))
        arrays = a, b, a_value, b_value, u, *options, *rows_of_queries, row_sum, np.float32(factor), d, *modes
        launch(call, numbers, gradient_tile, grid, WARP_BLOCK, *arrays)
        return d

    row_sum = dot_rows(call, numbers, g, out)  # (6)  (heads, N)
    d_q = gradient(*inputs[0].shape[-2:], q, k, g, v, k, row_sum, scale, True, True)  # rows are queries; d_S
    d_k = gradient(*inputs[1].shape[-2:], k, q, v, g, q, row_sum, scale, False, True)
    d_v = gradient(*inputs[2].shape[-2:], k, q, v, g, g, row_sum, 1, False, False)
    return tuple(results(call, d, x.shape[-1], x) for d, x in zip((d_q, d_k, d_v), inputs, strict=True))


def _of_keys(call, numbers, k, v, key_mask):
    """Words of ``k`` and ``v``, 0 for masked keys, and the mask ``(heads, L)``."""
    k, v = words(call, k), words(call, v)
    mask = mask_of(call, key_mask, k)
    return (k, v, mask) if key_mask is None else (*(shown(call, numbers, x, mask) for x in (k, v)), mask)
