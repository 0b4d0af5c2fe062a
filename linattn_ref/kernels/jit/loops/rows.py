"""Arrays as rows without gaps, for kernels that go through them a row at a time."""

import math

import numpy as np

__all__ = ["as_heads", "as_rows", "give_rows", "rows_to_write", "without_gaps"]


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


def rows_to_write(out, like):
    """``out`` as rows to be written to; new ones, shaped like another array, where it is None or has gaps."""
    if out is not None and out.flags.c_contiguous and out.flags.aligned:
        return as_rows(out)
    return np.empty((like.size // like.shape[-1], like.shape[-1]), like.dtype)


def give_rows(out, rows, shape):
    """What was written to the rows, in ``out`` unless that is None."""
    if out is None:
        return rows.reshape(shape)
    if not np.may_share_memory(out, rows):
        out[...] = rows.reshape(shape)
    return out
