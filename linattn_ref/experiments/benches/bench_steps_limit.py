"""What a step takes at least: to read a cache, or to read and write a state, and no more."""

from __future__ import annotations

from typing import Any

from linattn_ref.experiments.benches import bench_generation_limit
from linattn_ref.kernels.jit.loops.cache import serial_kernel
from linattn_ref.kernels.jit.loops.vector import broadcast, lanes, load, store

__all__ = ["pass_over", "read_once"]


def read_once(x: Any) -> Any:
    """The sum of all numbers of a contiguous array, but for those that no whole Blocks of Vectors are left for."""
    return bench_generation_limit.read_once(_vectors(x))


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
