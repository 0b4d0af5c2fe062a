"""Softmax attention as its equations print it, with the ``(N, L)`` matrix that they speak of.

    A = scale Q K^T                                          (1)
    P_ij = exp(A_ij) / sum_l exp(A_il)                       (2)
    O = P V                                                  (3)

``P`` is kept for the backward pass: ``O(N L)`` memory. Without it the same is computed in ``softmax.py``. A score of
(1) beyond the range of its dtype counts as the largest or smallest finite number, so that (2) sums to 1 all the same.

The gradient, by hand
---------------------
Let ``dO`` be the gradient of a loss with respect to ``O``. From (3),

    dV = P^T dO                                              (4)
    dP = dO V^T                                              (5)

From (2), ``dP_ij/dA_il = P_ij (delta_jl - P_il)``, so that ``dA_il = sum_j dP_ij P_ij (delta_jl - P_il)``, that is

    dA = P * (dP - rowsum(dP * P))                           (6)

and from (1),

    dQ = scale dA K                                          (7)
    dK = scale dA^T Q                                        (8)

Two keys, of which the query is twice as similar to the first as to the second, ``exp(A) = (2, 1)``:

>>> import numpy as np
>>> from linattn_ref.attention import softmax_dense
>>> q, k, v = np.array([[1.0]]), np.log([[2.0], [1.0]]), np.array([[3.0], [6.0]])
>>> out, saved = softmax_dense.forward(q, k, v)
>>> print(saved.p.round(3), out)
[[0.667 0.333]] [[4.]]
>>> print(softmax_dense.backward(np.ones((1, 1)), saved).k.round(3))  # more of the first key would lower the output
[[-0.667]
 [ 0.667]]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array, Mask, check_d_out, check_qk, check_qkv, check_saved, resolve_scale
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.masks import visible, zero_masked
from linattn_ref.kernels.reference.saturation import saturate
from linattn_ref.kernels.reference.seen_product import product_of_seen

__all__ = ["Gradients", "Saved", "backward", "forward", "matrix"]


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D)
    v: Array  # (..., L, M)


@documented
class Saved(NamedTuple):
    """What the backward pass needs: ``P`` is the ``O(N L)`` of softmax attention."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D), masked rows 0
    v: Array  # (..., L, M), masked rows 0
    p: Array  # (..., N, L)
    scale: float  # of the scores


def check_matrix(
    q: Array, k: Array, *, causal: bool = False, key_mask: Mask | None = None, scale: float | None = None, **_: Any
) -> None:
    check_qk(q, k, causal=causal, key_mask=key_mask)
    resolve_scale(scale, q.shape[-1])


@door(check_matrix)
def matrix(
    q: Array, k: Array, *, causal: bool = False, key_mask: Mask | None = None, scale: float | None = None
) -> Array:
    """The context mapping matrix ``P`` of equation (2).

    Parameters
    ----------
    q, k, causal, key_mask, scale
        The common arguments: ``help(linattn_ref.attention)``.

    Returns
    -------
    ndarray ``(..., N, L)``
        Rows sum to 1; the row of a query that sees nothing is 0.
    """
    scale = resolve_scale(scale, q.shape[-1])
    k = zero_masked(k, key_mask)
    p = (scale * q) @ k.swapaxes(-1, -2)  # (1)  (..., N, L); one such array, worked on in place
    saturate(p, q, k)
    if causal or key_mask is not None:
        seen = visible(q.shape[-2], k.shape[-2], causal=causal, key_mask=key_mask, like=q)  # (..., N, L)
        np.copyto(p, -np.inf, where=~seen)
    row_max = p.max(axis=-1, keepdims=True)  # (..., N, 1), cancels in (2)
    p -= np.where(np.isneginf(row_max), q.dtype.type(0), row_max)
    np.exp(p, out=p)
    row_sum = p.sum(axis=-1, keepdims=True)  # (..., N, 1), 0 where a query sees nothing
    p /= np.where(row_sum == 0, q.dtype.type(1), row_sum)  # (2)
    return p


def check_forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    key_mask: Mask | None = None,
    scale: float | None = None,
    **_: Any,
) -> None:
    """Of softmax attention in both its forms."""
    check_qkv(q, k, v, causal=causal, key_mask=key_mask)
    resolve_scale(scale, q.shape[-1])


@door(check_forward)
def forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    key_mask: Mask | None = None,
    scale: float | None = None,
) -> tuple[Array, Saved]:
    """Softmax attention as equations (1)-(3) print it.

    Parameters
    ----------
    q, k, v, causal, key_mask, scale
        The common arguments: ``help(linattn_ref.attention)``.
    """
    scale = resolve_scale(scale, q.shape[-1])
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    p = matrix.unchecked(q, k, causal=causal, key_mask=key_mask, scale=scale)  # (1), (2)
    return product_of_seen(p, v), Saved(q, k, v, p, scale)  # (3)


def check_backward(d_out: Array, saved: Saved, **_: Any) -> None:
    check_saved(saved, Saved)
    check_d_out(d_out, (*saved.q.shape[:-1], saved.v.shape[-1]), saved.q.dtype)


@door(check_backward)
def backward(d_out: Array, saved: Saved) -> Gradients:
    """Gradients of :func:`forward`, equations (4)-(8)."""
    q, k, v, p, scale = saved
    d_v = product_of_seen(p.swapaxes(-1, -2), d_out)  # (4)  (..., L, M)
    d_p = np.where(p == 0, p, d_out @ v.swapaxes(-1, -2))  # (5)  (..., N, L); what is not seen may be NaN
    d_scores = p * (d_p - (d_p * p).sum(axis=-1, keepdims=True))  # (6)  (..., N, L)
    d_q = scale * product_of_seen(d_scores, k)  # (7)  (..., N, D)
    d_k = scale * product_of_seen(d_scores.swapaxes(-1, -2), q)  # (8)  (..., L, D)
    return Gradients(d_q, d_k, d_v)
