"""The dynamic projection of the Long-Short Transformer (Zhu et al. 2021): mixtures of keys, weighted by the keys.

    P = softmax(K W_p)                                       (1)  (W, R), each column sums to 1 over the sequence
    K- = P^T K,   V- = P^T V                                 (2)  (R, D), (R, M)

Column ``r`` of ``W_p (D, R)`` says what mixture ``r`` looks for: (1) and (2) are softmax attention (scale 1) of ``R``
learned queries to the keys. Nothing in it depends on a place or on the length. Causal, every segment of ``w`` keys is
mixed on its own, those of the last segment not at all, since no query is wholly behind it. So the keys are taken as
``T`` parts of ``W``: ``T = 1`` and ``W = L``, or causal ``T = (L - 1) // w`` and ``W = w``.

The gradient, by hand
---------------------
``P`` mixes keys and values, so that its gradient has a part from each:

    dP = K dK-^T + V dV-^T,   dK = P dK-,   dV = P dV-       (3)

Through the softmax, whose sums run over the sequence,

    dA_jr = P_jr (dP_jr - sum_l dP_lr P_lr)                  (4)
    dW_p = K^T dA,   dK += dA W_p^T                          (5)

Keys get a gradient along two paths: for what they contribute, and for how much of it.

Example
-------
Three tokens and one mixture, which looks for keys along the first axis: the weights are ``exp`` of 0, 0 and log 2.

>>> import numpy as np
>>> k = np.array([[0.0, 1.0], [0.0, 1.0], [np.log(2.0), 0.0]])
>>> v, w_p = np.array([[1.0], [2.0], [8.0]]), np.array([[1.0], [0.0]])
>>> mixed, saved = forward(k, v, w_p, window=3)
>>> print(saved.p[0].T, mixed.v)  # (1 + 2 + 2 * 8) / 4
[[0.25 0.25 0.5 ]] [[4.75]]
>>> print(backward(Mixtures(np.zeros((1, 2)), np.ones((1, 1))), saved).v.T)
[[0.25 0.25 0.5 ]]

References
----------
Zhu et al. (2021), "Long-short Transformer: efficient Transformers for language and vision", section 3.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.parts.heads import sum_to_shape
from linattn_ref.attention.parts.masks import mix, scores, shown
from linattn_ref.attention.softmax import softmax
from linattn_ref.op import Array, Bool, Float, op
from linattn_ref.op.options import sized

__all__ = ["Gradients", "Mixtures", "Saved", "backward", "forward", "in_parts"]


class Mixtures(NamedTuple):
    """The mixtures of all parts, one part after the other."""

    k: Float[Array, "... tr D"]  # K-, T R rows
    v: Float[Array, "... tr M"]  # V-


class Saved(NamedTuple):
    """What the backward pass needs: the inputs and the weights."""

    k: Float[Array, "... L D"]  # masked rows 0
    v: Float[Array, "... L M"]  # masked rows 0
    w_p: Float[Array, "#... D R"]
    p: Float[Array, "... t W R"]
    window: int
    causal: bool
    key_mask: Bool[Array, "... L"] | None


class Gradients(NamedTuple):
    k: Float[Array, "... L D"]
    v: Float[Array, "... L M"]
    w_p: Float[Array, "#... D R"]


@op(look=sized("window"))
def forward(
    k: Float[Array, "... L D"],
    v: Float[Array, "... L M"],
    w_p: Float[Array, "#... D R"],
    *,
    window: int,
    causal: bool = False,
    key_mask: Bool[Array, "... L"] | None = None,
) -> tuple[Mixtures, Saved]:
    """Equations (1) and (2). A masked key has no share; the weights of a part in which all are masked are 0."""
    k, v = shown(k, key_mask), shown(v, key_mask)
    k_parts, v_parts = in_parts(k, window, causal), in_parts(v, window, causal)  # (..., T, W, D), (..., T, W, M)
    a = scores(k_parts, w_p[..., None, :, :].mT, 1.0)  # (1)  (..., T, W, R)
    if key_mask is not None:
        a = np.where(in_parts(key_mask[..., None], window, causal), a, a.dtype.type(-np.inf))
    p = softmax(a.mT).mT  # (1)
    mixed = Mixtures(*((p.mT @ x).reshape(*x.shape[:-3], -1, x.shape[-1]) for x in (k_parts, v_parts)))  # (2)
    return mixed, Saved(k, v, w_p, p, window, causal, key_mask)


def look_back(d_mixed: Any, saved: Any) -> None:
    rows = saved.p.shape[-3] * saved.p.shape[-1]  # T R
    for name, d, x in zip(Mixtures._fields, d_mixed, (saved.k, saved.v), strict=True):
        if d.shape[-2] != rows:
            expected = (*x.shape[:-2], rows, x.shape[-1])
            raise ValueError(f"d_mixed.{name}: expected the shape of the mixtures, {expected}, got {d.shape}")


@op(look=look_back)
def backward(d_mixed: Mixtures, saved: Saved) -> Gradients:
    """Equations (3)-(5)."""
    k, v, w_p, p, window, causal, key_mask = saved
    d_k, d_v = np.zeros_like(k), np.zeros_like(v)
    k_parts, v_parts, d_k_parts, d_v_parts = (in_parts(x, window, causal) for x in (k, v, d_k, d_v))
    rows = (*p.shape[:-2], p.shape[-1])  # (..., T, R)
    d_mixed_k, d_mixed_v = (x.reshape(*rows, x.shape[-1]) for x in d_mixed)  # (..., T, R, D), (..., T, R, M)
    shares = (p != 0) & ((p != 0).sum(axis=-2, keepdims=True) > 1)  # no weight, or all of it: dA = 0
    d_p = np.where(shares, k_parts @ d_mixed_k.mT + v_parts @ d_mixed_v.mT, p.dtype.type(0))  # (3)
    d_a = np.where(shares, p * (d_p - (d_p * p).sum(axis=-2, keepdims=True)), p.dtype.type(0))  # (4)
    d_w_p = (k_parts.mT @ d_a).sum(axis=-3)  # (5)
    d_k_parts[...] = mix(p, d_mixed_k) + d_a @ w_p[..., None, :, :].mT  # (3), (5)
    d_v_parts[...] = mix(p, d_mixed_v)  # (3)
    return Gradients(shown(d_k, key_mask), shown(d_v, key_mask), sum_to_shape(d_w_p, w_p.shape))


def in_parts(x: Any, window: int, causal: bool) -> Any:
    """Rows that are mixed together, ``(..., L, X) -> (..., T, W, X)``: all, or causal all segments but one. A view."""
    length = x.shape[-2]
    count, width = ((length - 1) // window, min(window, length)) if causal else (1, length)
    return x[..., : count * width, :].reshape(*x.shape[:-2], count, width, x.shape[-1])
