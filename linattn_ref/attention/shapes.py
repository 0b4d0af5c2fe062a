"""Shapes: sequences cut into segments, and axes that broadcast."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from linattn_ref.attention.arguments import check_sizes
from linattn_ref.attention.plain_numbers import plain_numbers

__all__ = ["segment_bounds"]


@plain_numbers
def segment_bounds(length: int, reduced: int) -> NDArray[np.int64]:
    """Bounds ``(R + 1,)`` of ``reduced`` segments of ``length`` positions; the first ``L mod R`` are one longer."""
    check_sizes(length=length)
    if isinstance(reduced, bool) or not isinstance(reduced, (int, np.integer)) or not 1 <= reduced <= length:
        raise ValueError(f"reduced: expected an integer with 1 <= R <= L = {length}, got {reduced!r}")
    size, longer = divmod(length, reduced)
    return np.arange(reduced + 1) * size + np.minimum(np.arange(reduced + 1), longer)
