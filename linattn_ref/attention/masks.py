"""Masks: what becomes of a masked key's numbers."""

from __future__ import annotations

import numpy as np

from linattn_ref.attention.arguments import Array, Mask

__all__ = ["zero_masked"]


def zero_masked(x: Array, key_mask: Mask | None) -> Array:
    """``x (..., L, W)`` with the rows of masked keys set to 0, so that what they contain can change nothing."""
    if key_mask is None:
        return x
    return np.where(key_mask[..., None], x, x.dtype.type(0))
