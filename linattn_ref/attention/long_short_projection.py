"""The dynamic projection of the Long-Short Transformer (Zhu et al. 2021): mixtures of keys, weighted by the keys.

    P = softmax(K W_p)                                       (1)  (W, R), each column sums to 1 over the sequence
    K- = P^T K,   V- = P^T V                                 (2)  (R, D), (R, M)

Column ``r`` of ``W_p (D, R)`` says what mixture ``r`` looks for: (1) and (2) are softmax attention (scale 1) of ``R``
learned queries to the keys. Nothing in it depends on a place or on the length. Causal, every segment of ``w`` keys is
mixed on its own, those of the last segment not at all, since no query is wholly behind it. So the keys are taken as
``T`` parts of ``W``: ``T = 1`` and ``W = L``, or causal ``T = (L - 1) // w`` and ``W = w``.

The gradient, by hand
---------------------
``P`` mixes keys and values, so that both say what they would rather have:

    dP = K dK-^T + V dV-^T,   dK = P dK-,   dV = P dV-       (3)

Through the softmax, whose sums run over the sequence,

    dA_jr = P_jr (dP_jr - sum_l dP_lr P_lr)                  (4)
    dW_p = K^T dA,   dK += dA W_p^T                          (5)

Keys get a gradient on both ways: for what they contribute, and for how much of it.

References
----------
Zhu et al. (2021), "Long-short Transformer: efficient Transformers for language and vision", section 3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from linattn_ref.attention.arguments import Array, Mask, check_array
from linattn_ref.attention.shapes import sum_to_shape


def in_parts(x: NDArray[Any], window: int, causal: bool) -> NDArray[Any]:
    """Rows that are mixed together, ``(..., L, X) -> (..., T, W, X)``: all, or causal all segments but one. A view."""
    length = x.shape[-2]
    count, width = ((length - 1) // window, window) if causal else (1, length)
    return x[..., : count * width, :].reshape(*x.shape[:-2], count, width, x.shape[-1])


def projection(k_parts: Array, w_p: Array, mask_parts: Mask | None = None) -> Array:
    """``P`` of (1) for each part, ``(..., T, W, R)``.

    Parameters
    ----------
    k_parts : ndarray ``(..., T, W, D)``
        Keys as :func:`in_parts` cuts them.
    w_p : ndarray ``(D, R)`` or ``(..., D, R)``
    mask_parts : ndarray of bool ``(..., T, W, 1)``, optional
        True = has a share. The columns of a part without any are 0.
    """
    scores = k_parts @ w_p[..., None, :, :]  # (1)  (..., T, W, R)
    if mask_parts is not None:
        scores = np.where(mask_parts, scores, scores.dtype.type(-np.inf))
    largest = scores.max(axis=-2, keepdims=True)  # (..., T, 1, R), cancels
    p = np.exp(scores - np.where(np.isneginf(largest), scores.dtype.type(0), largest))
    total = p.sum(axis=-2, keepdims=True)
    return p / np.where(total == 0, p.dtype.type(1), total)


def mix(p: Array, parts: Array) -> Array:
    """``P^T x`` of (2), one part after the other: ``(..., T, W, D) -> (..., T R, D)``."""
    mixed = p.swapaxes(-1, -2) @ parts  # (2)  (..., T, R, D)
    return mixed.reshape(*mixed.shape[:-3], mixed.shape[-3] * mixed.shape[-2], mixed.shape[-1])


def mix_backward(
    d_mixed_k: Array, d_mixed_v: Array, p: Array, k_parts: Array, v_parts: Array, w_p: Array
) -> tuple[Array, Array, Array]:
    """Gradients of ``k_parts``, ``v_parts`` and ``w_p``, equations (3)-(5).

    Parameters
    ----------
    d_mixed_k, d_mixed_v : ndarray, ``(..., T R, D)``, ``(..., T R, M)``
    p, k_parts, v_parts, w_p
        What :func:`projection` returned, and what it and :func:`mix` were given.
    """
    rows = (*p.shape[:-2], p.shape[-1])  # (..., T, R)
    d_mixed_k, d_mixed_v = (x.reshape(*rows, x.shape[-1]) for x in (d_mixed_k, d_mixed_v))
    d_p = k_parts @ d_mixed_k.swapaxes(-1, -2) + v_parts @ d_mixed_v.swapaxes(-1, -2)  # (3)  (..., T, W, R)
    d_scores = p * (d_p - (d_p * p).sum(axis=-2, keepdims=True))  # (4)
    d_w_p = (k_parts.swapaxes(-1, -2) @ d_scores).sum(axis=-3)  # (5)  (..., D, R)
    d_k = p @ d_mixed_k + d_scores @ w_p[..., None, :, :].swapaxes(-1, -2)  # (3), (5)  (..., T, W, D)
    return d_k, p @ d_mixed_v, sum_to_shape(d_w_p, w_p.shape)


def check_w_p(w_p: Array, k: Array) -> None:
    """``w_p`` is ``(D, R)`` or ``(..., D, R)`` with leading axes that broadcast to those of ``k (..., L, D)``."""
    check_array("w_p", w_p, dtype=k.dtype)
    if w_p.shape[-2] != k.shape[-1]:
        raise ValueError(f"w_p: expected one row an entry of a key, (D, R) with D = {k.shape[-1]}, got {w_p.shape}")
    got, leading = w_p.shape[:-2], k.shape[:-2]
    tail = leading[len(leading) - len(got) :] if got else ()
    if len(got) > len(leading) or any(a not in (1, b) for a, b in zip(got, tail, strict=True)):
        raise ValueError(f"w_p: leading axes {got} do not broadcast to those of k, {leading}")
