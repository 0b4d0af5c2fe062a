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
from numpy.typing import NDArray

from linattn_ref.attention.arguments import (
    Array,
    Mask,
    check_array,
    check_key_mask,
    check_saved,
    check_shape,
    check_sizes,
)
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.masks import zero_masked
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.attention.shapes import check_broadcasts, sum_to_shape
from linattn_ref.kernels.reference.saturation import saturate

__all__ = ["Gradients", "Mixtures", "Saved", "backward", "forward", "in_parts"]


@documented
class Mixtures(NamedTuple):
    """The mixtures of all parts, one part after the other."""

    k: Array  # K- (..., T R, D)
    v: Array  # V- (..., T R, M)


@documented
class Saved(NamedTuple):
    """What the backward pass needs: the inputs and the weights."""

    k: Array  # (..., L, D), masked rows 0
    v: Array  # (..., L, M), masked rows 0
    w_p: Array  # (D, R) or (..., D, R)
    p: Array  # (..., T, W, R)
    window: int
    causal: bool


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    k: Array  # (..., L, D)
    v: Array  # (..., L, M)
    w_p: Array  # like w_p


def _check_forward(
    k: Array, v: Array, w_p: Array, *, window: int, causal: bool = False, key_mask: Mask | None = None
) -> None:
    check_array("k", k)
    check_array("v", v, dtype=k.dtype)
    check_shape("v", v, (*k.shape[:-1], v.shape[-1]), "(..., L, M)")
    check_w_p(w_p, k)
    check_sizes(window=window)
    check_key_mask(key_mask, k)


def check_w_p(w_p: Array, k: Array) -> None:
    """``w_p`` is ``(D, R)`` or ``(..., D, R)`` with leading axes that broadcast to those of ``k (..., L, D)``."""
    check_array("w_p", w_p, dtype=k.dtype)
    if w_p.shape[-2] != k.shape[-1]:
        raise ValueError(f"w_p: expected one row an entry of a key, (D, R) with D = {k.shape[-1]}, got {w_p.shape}")
    check_broadcasts("w_p", w_p.shape[:-2], k.shape[:-2])


@door(_check_forward)
def forward(
    k: Array, v: Array, w_p: Array, *, window: int, causal: bool = False, key_mask: Mask | None = None
) -> tuple[Mixtures, Saved]:
    """Mixtures of keys and values.

    Parameters
    ----------
    k, v, key_mask
        The common arguments: ``help(linattn_ref.attention)``. A masked key has no share; the weights of a part in which
        all are masked are 0.
    w_p : ndarray ``(D, R)`` or ``(..., D, R)``
        What each mixture looks for; leading axes broadcast with those of ``k``.
    window : int
        ``w``, the width of a part, if causal.
    causal : bool
        Each segment but the last by itself; otherwise all keys together.
    """
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    k_parts, v_parts = in_parts(k, window, causal), in_parts(v, window, causal)  # (..., T, W, D), (..., T, W, M)
    w = w_p[..., None, :, :]
    scores = saturate(k_parts @ w, k_parts, w.swapaxes(-1, -2))  # (1)  (..., T, W, R)
    if key_mask is not None:
        scores = np.where(in_parts(key_mask[..., None], window, causal), scores, scores.dtype.type(-np.inf))
    p = _softmax_over_sequence(scores)  # (1)
    mixed = Mixtures(*(_in_a_row(p.swapaxes(-1, -2) @ x) for x in (k_parts, v_parts)))  # (2)
    return mixed, Saved(k, v, w_p, p, window, causal)


def _check_backward(d_mixed: Mixtures, saved: Any) -> None:
    check_saved(saved, Saved)
    rows = saved.p.shape[-3] * saved.p.shape[-1]  # T R
    for name, d, x in zip(("d_mixed.k", "d_mixed.v"), d_mixed, (saved.k, saved.v), strict=True):
        check_shape(name, d, (*x.shape[:-2], rows, x.shape[-1]), "of the mixtures")


@door(_check_backward)
def backward(d_mixed: Mixtures, saved: Saved) -> Gradients:
    """Gradients of :func:`forward`, equations (3)-(5), for those of ``K-`` and ``V-``."""
    k, v, w_p, p, window, causal = saved
    d_k, d_v = np.zeros_like(k), np.zeros_like(v)
    k_parts, v_parts, d_k_parts, d_v_parts = (in_parts(x, window, causal) for x in (k, v, d_k, d_v))
    rows = (*p.shape[:-2], p.shape[-1])  # (..., T, R)
    d_mixed_k, d_mixed_v = (x.reshape(*rows, x.shape[-1]) for x in d_mixed)  # (..., T, R, D), (..., T, R, M)
    d_p = k_parts @ d_mixed_k.swapaxes(-1, -2) + v_parts @ d_mixed_v.swapaxes(-1, -2)  # (3)  (..., T, W, R)
    d_scores = p * (d_p - (d_p * p).sum(axis=-2, keepdims=True))  # (4)
    d_w_p = (k_parts.swapaxes(-1, -2) @ d_scores).sum(axis=-3)  # (5)  (..., D, R)
    d_k_parts[...] = p @ d_mixed_k + d_scores @ w_p[..., None, :, :].swapaxes(-1, -2)  # (3), (5)  (..., T, W, D)
    d_v_parts[...] = p @ d_mixed_v  # (3)
    return Gradients(d_k, d_v, sum_to_shape(d_w_p, w_p.shape))


@plain_numbers
def in_parts(x: NDArray[Any], window: int, causal: bool) -> NDArray[Any]:
    """Rows that are mixed together, ``(..., L, X) -> (..., T, W, X)``: all, or causal all segments but one. A view."""
    length = x.shape[-2]
    count, width = ((length - 1) // window, window) if causal else (1, length)
    return x[..., : count * width, :].reshape(*x.shape[:-2], count, width, x.shape[-1])


def _in_a_row(mixed: Array) -> Array:
    """One part after the other: ``(..., T, R, X) -> (..., T R, X)``."""
    return mixed.reshape(*mixed.shape[:-3], mixed.shape[-3] * mixed.shape[-2], mixed.shape[-1])


def _softmax_over_sequence(scores: Array) -> Array:
    """Softmax along ``W`` of ``(..., T, W, R)``; 0 where all scores are minus infinity."""
    largest = scores.max(axis=-2, keepdims=True)  # (..., T, 1, R), cancels
    p = np.exp(scores - np.where(np.isneginf(largest), scores.dtype.type(0), largest))
    total = p.sum(axis=-2, keepdims=True)
    return p / np.where(total == 0, p.dtype.type(1), total)
