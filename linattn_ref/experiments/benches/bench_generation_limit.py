"""What a token takes at least: all weights of a network loaded, and added up so that none can be left out."""

from __future__ import annotations

from typing import Any

from linattn_ref.kernels.jit.loops.cache import serial_kernel
from linattn_ref.kernels.jit.loops.row_sums import prefetch_rows
from linattn_ref.kernels.jit.loops.vector import broadcast, load, total
from linattn_ref.kernels.jit.loops.vector_block import ROWS

__all__ = ["read_once"]

AHEAD = 64  # rows, as `linattn_ref.kernels.jit.loops.decode` asks for them


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
