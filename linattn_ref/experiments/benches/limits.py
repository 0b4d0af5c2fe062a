"""What cannot be faster on this processor: arithmetic, or passing over memory, and nothing else."""

from typing import Any

import numpy as np

from linattn_ref.kernels.jit.loops.cache import serial_kernel
from linattn_ref.kernels.jit.loops.simd.row_sums import prefetch_rows
from linattn_ref.kernels.jit.loops.simd.vector import broadcast, fma, lanes, load, store, total
from linattn_ref.kernels.jit.loops.simd.vector_block import ROWS

__all__ = ["SUMS", "multiply_adds", "pass_over", "read_all", "read_once"]

# Sums that do not wait for one another; a Vector is two registers, and ten additions fill any multiplier's pipeline.
SUMS = 5
AHEAD = 64  # rows, as `linattn_ref.kernels.jit.loops.layers.decode` asks for them


def multiply_adds(count: int, dtype: Any) -> tuple[Any, ...]:
    """Make at least ``count`` multiply-adds on one thread; no result."""
    like = np.array([0.5], dtype)
    sum_of_adds(-(-count // (SUMS * lanes(like))), like)
    return ()


@serial_kernel
def sum_of_adds(times: int, like: Any) -> Any:
    x = like[0]
    half, a, b = broadcast(x), broadcast(x), broadcast(-x)
    c, d, e = broadcast(x + x), broadcast(x * x), broadcast(-x * x)  # all different, or they would be one
    for _ in range(times):
        a, b, c = fma(a, half, half), fma(b, half, half), fma(c, half, half)
        d, e = fma(d, half, half), fma(e, half, half)
    return total(a + b + c + d + e)


@serial_kernel
def read_once(weights: Any) -> Any:
    """The sum of ``weights (rows, lanes)``; of a last few rows, fewer than a Block has, none."""
    a = broadcast(weights.dtype.type(0))
    b = c = d = a
    for first in range(0, len(weights) - ROWS + 1, ROWS):
        prefetch_rows(weights, first + AHEAD)
        for row in range(first, first + ROWS, 4):
            a, b = a + load(weights, row), b + load(weights, row + 1)
            c, d = c + load(weights, row + 2), d + load(weights, row + 3)
    return total((a + b) + (c + d))


def read_all(x: Any) -> Any:
    """The sum of all numbers of a contiguous array, but for those that no whole Blocks of Vectors are left for."""
    return read_once(_vectors(x))


def pass_over(x: Any) -> None:
    """Every number of a contiguous array read, and written as it was; but for less than a Vector at the end."""
    _pass_over(_vectors(x))


def _vectors(x: Any) -> Any:
    """As much of the array as are whole Vectors, ``(rows, lanes)``."""
    flat, width = x.reshape(-1), lanes(x)
    return flat[: flat.size // width * width].reshape(-1, width)


@serial_kernel
def _pass_over(rows: Any) -> None:
    one = broadcast(rows.dtype.type(1))
    for row in range(len(rows)):
        store(rows, row, load(rows, row) * one)
