"""Heads of arrays with any strides, for kernels: their addresses in a table.

A model that makes queries as ``(B, N, H, D)`` looks at them as ``(B, H, N, D)``: the numbers of a row lie side by side,
but between two rows of a head lie those of all others. For NumPy arrays Numba would compile a kernel for each
combination of layouts, or they would have to be copied. So kernels are given a table, the same type for all layouts:

    row 0        0        0     0      0           leading shape, here (B, H)
    row 1 + i    address  rows  width  row stride  leading strides               of array i, in bytes

from which :func:`head_of` makes a head of an array. The caller has to keep the arrays for as long as the kernel runs.
"""

import math

import numpy as np

from linattn_ref.kernels.jit.loops.inner import inner
from linattn_ref.kernels.jit.loops.simd.vector import LINE
from linattn_ref.kernels.jit.loops.views import rows_apart


def table_of(*arrays):
    """The table of arrays ``(..., rows, width)`` with the same leading axes and dtype, each :func:`side_by_side`."""
    leading, dtype = arrays[0].shape[:-2], arrays[0].dtype
    entries = [(0, 0, 0, 0, *leading)]
    for x in arrays:  # in a loop, and without x.ctypes: a small kernel is done in the time of a few calls in Python
        if x.dtype != dtype:
            raise TypeError(f"expected arrays of one dtype, got {dtype} and {x.dtype}")
        if x.shape[:-2] != leading or (x.strides[-1] != x.itemsize and x.shape[-1] > 1 and x.size):
            raise ValueError(
                f"expected arrays (..., rows, width) with the leading axes {leading} and without gaps in a row, got"
                f" shape {x.shape} and strides {x.strides}"
            )
        entries.append((x.__array_interface__["data"][0], *x.shape[-2:], x.strides[-2], *x.strides[:-2]))
    return np.array(entries, np.intp)


def side_by_side(*arrays):
    """The arrays, or copies of those where the numbers of a row have gaps between them."""
    arrays = list(arrays)
    for i, x in enumerate(arrays):
        if not (x.flags.aligned and (x.strides[-1] == x.itemsize or x.shape[-1] == 1)):
            arrays[i] = np.ascontiguousarray(x)
    return arrays


def to_write(out, shape, dtype):
    """``out`` for a kernel to write to; a new array where that is None, or where its rows have gaps."""
    return out if out is not None and side_by_side(out)[0] is out else np.empty(shape, dtype)


def new_like(*arrays):
    """Arrays without gaps for the gradients of others."""
    return [np.empty(x.shape, x.dtype) for x in arrays]


def zeros_aligned(shape, dtype):
    """Zeros that begin where a cache line does, so that no Vector lies in one more line than it has to."""
    dtype = np.dtype(dtype)
    memory = np.zeros(math.prod(shape) * dtype.itemsize + LINE, np.uint8)
    first = -memory.__array_interface__["data"][0] % LINE
    return memory[first : memory.size - LINE + first].view(dtype).reshape(shape)


def give(out, written):
    """What a kernel has written, in ``out`` unless that is None."""
    if out is None or written is out:
        return written
    out[...] = written
    return out


@inner(forceinline=True)
def head_of(table, i, head, dtype):
    """Array ``i`` of the table as ``(rows, width)``, of a head counted over all leading axes."""
    address = table[i + 1, 0]
    for axis in range(table.shape[1] - 1, 3, -1):
        address += head % table[0, axis] * table[i + 1, axis]
        head //= table[0, axis]
    return rows_apart(address, table[i + 1, 1], table[i + 1, 2], table[i + 1, 3], dtype)


@inner(forceinline=True)
def four_heads_of(table, first, head, dtype):
    """The arrays ``first`` to ``first + 3`` of the table, likewise."""
    a, b = head_of(table, first, head, dtype), head_of(table, first + 1, head, dtype)
    c, d = head_of(table, first + 2, head, dtype), head_of(table, first + 3, head, dtype)
    return a, b, c, d
