"""Arrays as rows without gaps, for kernels that go through them a row at a time."""

import math

import numpy as np

__all__ = ["as_heads", "as_rows", "without_gaps"]


def without_gaps(x, dtype=None):
    """``x``, or a copy where that has gaps or is read-only, for which Numba would compile anew."""
    return np.require(x, dtype, "CAW")


def as_rows(x):
    """``x (..., W)`` as ``(rows, W)``: the same memory, or a copy where that has gaps or is read-only."""
    x = x if x.flags.carray else without_gaps(x)
    return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])


def as_heads(x):
    """``x (..., N, W)`` as ``(heads, N, W)``, likewise."""
    return without_gaps(x).reshape(math.prod(x.shape[:-2]), *x.shape[-2:])
