"""Masks: which query may look at which key, and what becomes of a masked key's numbers."""

from __future__ import annotations

import numpy as np

from linattn_ref.attention.arguments import Array, Mask

__all__ = ["visible", "zero_masked"]


def visible(n: int, n_keys: int, *, causal: bool, key_mask: Mask | None, like: Array | None = None) -> Mask:
    """Which query may look at which key: ``(..., N, L)``, with axes of length 1 where nothing depends on them.

    On a GPU, if an array ``like`` those that it is for is there.
    """
    keys = np.arange(n_keys, like=like)
    allowed = keys[None] >= 0 if key_mask is None else key_mask[..., None, :]  # (..., 1, L)
    if causal:
        allowed = allowed & (keys <= np.arange(n, like=like)[:, None] + (n_keys - n))  # (..., N, L)
    return allowed


def zero_masked(x: Array, key_mask: Mask | None) -> Array:
    """``x (..., L, W)`` with the rows of masked keys set to 0, so that what they contain can change nothing."""
    if key_mask is None:
        return x
    return np.where(key_mask[..., None], x, x.dtype.type(0))
