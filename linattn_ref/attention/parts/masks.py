"""Who sees whom, rows that are masked, and sums in which what is not seen counts for nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from linattn_ref.op import Array

__all__ = ["divide", "first_seen", "in_range", "mix", "scores", "shown", "visible"]


def visible(q: Array, k: Array, causal: bool, key_mask: Array | None, tile: slice = slice(None)) -> Any:
    """Which query may see which key, broadcasting to ``(..., N, L)``, or to fewer keys, those of a ``tile``.

    Causal, queries and keys are aligned at the end: the last query sees all keys.
    """
    n, keys = q.shape[-2], k.shape[-2]
    numbers = np.arange(keys, like=q)[tile]
    seen = numbers <= (np.arange(n, like=q)[:, None] + (keys - n) if causal else keys)
    return seen if key_mask is None else seen & key_mask[..., None, tile]


def first_seen(q: Array, k: Array, causal: bool) -> list[Any]:
    """Pairs of indices: of some queries, and of the keys that these are the first to see.

    All queries and all keys at once; or, causal, one query at a time, the first with the ``L - N + 1`` keys up to its
    own and every later one with one more key.
    """
    n, keys = q.shape[-2], k.shape[-2]
    if not causal:
        return [(np.s_[..., :, :], np.s_[..., :, :])]
    ends = range(keys - n + 1, keys + 1)
    return [(np.s_[..., i : i + 1, :], np.s_[..., (end - 1 if i else 0) : end, :]) for i, end in enumerate(ends)]


def scores(q: Array, k: Array, scale: float) -> Array:
    """``scale q k^T``, in the range of its dtype.

    NumPy may warn about the difference of two such scores; its exponential is 0, as it should be.
    """
    with np.errstate(over="ignore"):
        return in_range(scale * (q @ k.mT))


def in_range(x: Array) -> Array:
    """``x`` with infinities replaced by the largest and the lowest number of its dtype, so that a maximum is finite."""
    limit = np.finfo(x.dtype).max
    return np.clip(x, -limit, limit)


def shown(x: Array, key_mask: Array | None) -> Array:
    """``x (..., L, W)`` with the rows of masked keys 0."""
    return x if key_mask is None else np.where(key_mask[..., None], x, x.dtype.type(0))


def divide(x: Array, y: Array) -> Array:
    """``x / y``, and 0 where ``y`` is 0: the output of a query that sees nothing."""
    nothing = y == 0
    return np.where(nothing, y.dtype.type(0), x / np.where(nothing, y.dtype.type(1), y))


def mix(weights: Array, x: Array) -> Array:
    """``weights @ x``, in which a weight of 0 takes nothing from a row, even if the row is NaN.

    An infinite number that has weight comes out as NaN too.
    """
    lost = ~np.isfinite(x)
    if not isinstance(x, np.ndarray) or not lost.any():  # a GPU is not asked
        return weights @ x
    reached = (weights != 0).astype(x.dtype) @ lost.astype(x.dtype) > 0
    return np.where(reached, x.dtype.type(np.nan), weights @ np.where(lost, x.dtype.type(0), x))
