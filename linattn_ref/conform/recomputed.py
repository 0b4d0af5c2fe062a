"""Softmax attention as fused kernels compute it: P is made again in the backward pass, from a number per query.

Kept is ``L_i = log sum_j exp(A_ij)``, and ``P = exp(A - L)``, which has lost as many digits as ``A`` has before its
point; and ``A`` is made again in another order of products. On tensor cores, which multiply 16 bits, P is rounded
before ``P V`` and ``P^T dO``, and ``dA`` before ``dA K`` and ``dA^T Q``; their sums are kept in float32. ``dA`` is made
of the output as it was returned, in 16 bits. All this is honest, and an answer may be off by as much.

References
----------
Dao et al. (2022), "FlashAttention: fast and memory-efficient exact attention with IO-awareness", Algorithms 1 and 4.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np

from linattn_ref.attention.parts.masks import divide, scores, shown, visible
from linattn_ref.attention.softmax import Gradients
from linattn_ref.conform.questions import rounded

__all__ = ["page"]


def page(dtype: str, grid: float = 1.0) -> Any:
    """The pair, with products of ``dtype`` where that has 16 bits; equations of `linattn_ref.attention.softmax`.

    Numbers are rounded to those of the dtype divided by ``grid``: with another one they are rounded otherwise.
    """

    def short(x: Any) -> Any:
        return (rounded(grid * x, dtype) / grid).astype(x.dtype) if dtype in ("float16", "bfloat16") else x

    def forward(
        q: Any, k: Any, v: Any, *, causal: bool = False, key_mask: Any = None, scale: float | None = None
    ) -> tuple[Any, Any]:
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        k, v = shown(k, key_mask), shown(v, key_mask)
        seen = visible(q, k, causal, key_mask)
        a = np.where(seen, scores(q, k, scale), q.dtype.type(-np.inf))  # (1)
        largest = np.maximum(a.max(axis=-1, keepdims=True), np.finfo(a.dtype).min)
        weights = np.exp(a - largest)
        total = weights.sum(axis=-1, keepdims=True)
        out = divide(short(weights) @ v, total)  # (2), (3)
        return out, (q, k, v, short(out), seen, largest + np.log(np.where(total, total, 1)), scale)

    def backward(d_out: Any, saved: Any) -> Gradients:
        q, k, v, out, seen, logsumexp, scale = saved
        a = np.where(seen, scores(q.dtype.type(scale) * q, k, 1.0), q.dtype.type(-np.inf))  # (1), rounded otherwise
        p = np.exp(a - logsumexp)
        d_a = short(p * (d_out @ v.mT - (d_out * out).sum(axis=-1, keepdims=True)))  # (5), (6)
        return Gradients(scale * d_a @ k, scale * d_a.mT @ q, short(p).mT @ d_out)  # (7), (8), (4)

    return SimpleNamespace(forward=forward, backward=backward)
