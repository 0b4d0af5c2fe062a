"""Buffers that the caller keeps: ``out=`` of a kernel's forward pass and ``gradients=`` of its backward pass.

A result is written into the array given for it, whatever its strides, and that array is returned. It must not share
memory with an input, nor with another result. With a buffer or without, the numbers are the same to the last bit.
"""

import numpy as np

__all__ = ["check_out", "empty", "into"]


def into(out, result, name="out"):
    """``result``, or ``out`` with that written to it."""
    if out is None:
        return result
    check_out(out, result.shape, result.dtype, name)
    out[...] = result
    return out


def empty(out, like, name="out"):
    """``out``, or a new array with the shape and dtype of another."""
    if out is None:
        return np.empty(like.shape, like.dtype)
    check_out(out, like.shape, like.dtype, name)
    return out


def check_out(out, shape, dtype, name="out"):
    """An array to be written to, of this shape and dtype.

    Raises
    ------
    TypeError, ValueError
    """
    if not isinstance(out, np.ndarray) or out.dtype != dtype:
        kind = out.dtype if isinstance(out, np.ndarray) else type(out).__name__
        raise TypeError(f"{name}: expected a numpy.ndarray of {np.dtype(dtype)}, got {kind}")
    if out.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {out.shape}")
    if not out.flags.writeable:
        raise ValueError(f"{name}: expected an array that can be written to, got a read-only one")
