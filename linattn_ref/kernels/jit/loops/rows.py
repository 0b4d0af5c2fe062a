"""Arrays as rows without gaps, for kernels that go through them a row at a time; and as panels, a Vector wide."""

import math

import numpy as np

from linattn_ref.kernels.jit.loops.simd.vector import lanes

__all__ = ["as_heads", "as_rows", "in_panels", "widened", "without_gaps"]


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


def widened(x):
    """``x (..., columns)`` with columns of zeros added, to a multiple of a Vector's lanes."""
    wide = np.zeros((*x.shape[:-1], x.shape[-1] + -x.shape[-1] % lanes(x)), x.dtype)  # np.pad takes ten times as long
    wide[..., : x.shape[-1]] = x
    return wide


def in_panels(x):
    """The columns of ``x (rows, columns)``, widened, in panels ``(panels, rows, lanes)``; a view."""
    return widened(x).reshape(len(x), -1, lanes(x)).swapaxes(0, 1)
