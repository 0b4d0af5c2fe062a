"""How fast a kernel could be at most: its multiply-adds and nothing else, the numbers already in registers.

Every processor has its own limit, and kernels come close to it or not: a ratio to another package, whose code uses
narrower vectors, says as much about the processor as about the kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from linattn_ref.kernels.jit.loops.cache import serial_kernel
from linattn_ref.kernels.jit.loops.vector import broadcast, fma, lanes, total

__all__ = ["multiply_adds"]

# Sums that do not wait for one another; a Vector is two registers, and ten additions fill any multiplier's pipeline.
SUMS = 5


def multiply_adds(count: int, dtype: Any) -> float:
    """Make at least ``count`` multiply-adds on one thread."""
    like = np.array([0.5], dtype)
    return _multiply_adds(-(-count // (SUMS * lanes(like))), like)


@serial_kernel
def _multiply_adds(times: int, like: Any) -> Any:
    x = like[0]
    half, a, b = broadcast(x), broadcast(x), broadcast(-x)
    c, d, e = broadcast(x + x), broadcast(x * x), broadcast(-x * x)  # all different, or they would be one
    for _ in range(times):
        a, b, c = fma(a, half, half), fma(b, half, half), fma(c, half, half)
        d, e = fma(d, half, half), fma(e, half, half)
    return total(a + b + c + d + e)
