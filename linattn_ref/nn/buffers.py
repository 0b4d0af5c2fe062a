"""Memory for results: new arrays, or an arena that hands out the same memory at every step of training.

A step of training makes arrays of the same shapes each time, and new memory from the system is dear: every page of it
is first set to zero, which can take as long as the arithmetic. An arena keeps one block and hands it out piece by
piece, until it is told that the step is over.

>>> arena = Arena()
>>> for _ in range(2):
...     x, y = arena((2, 3), np.float32), arena((4,), np.float32)
...     arena.reset()
>>> np.may_share_memory(x, arena((2, 3), np.float32))  # the same memory again
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from linattn_ref.attention.arguments import Array

__all__ = ["Arena", "Work", "add_into", "fresh", "scratch"]

ALIGNMENT = 64  # bytes: a cache line, and the widest vector

Work = Callable[[tuple[int, ...], Any], Array]  # shape, dtype -> an array that may hold anything


def fresh(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """A new array."""
    return np.empty(shape, dtype)


class Arena:
    """Arrays out of one block of memory, one after the other.

    The first step finds out how much it takes: what does not fit is new memory, and :meth:`reset` makes the block large
    enough. No array may be used after the ``reset`` that follows it; all that were handed out before it are different.
    """

    def __init__(self) -> None:
        self._block = np.empty(0, np.uint8)
        self._used = self._most = 0  # bytes, also those that did not fit

    def __call__(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An array that may hold anything."""
        dtype = np.dtype(dtype)
        start, size = self._used, math.prod(shape) * dtype.itemsize
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        self._most = max(self._most, self._used)
        if start + size > self._block.size:
            return np.empty(shape, dtype)
        return self._block[start : start + size].view(dtype).reshape(shape)

    def reset(self) -> None:
        """The step is over: hand out the same memory again."""
        if self._most > self._block.size:
            block = np.empty(self._most + ALIGNMENT, np.uint8)
            first = -block.ctypes.data % ALIGNMENT
            self._block = block[first : first + self._most]
        self._used = 0

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """What is handed out inside may be used inside only: afterwards the same memory is handed out again."""
        used = self._used
        yield
        self._used = used


@contextmanager
def scratch(work: Work) -> Iterator[None]:
    """:meth:`Arena.scratch`, if it is one; other arrays go when nobody needs them."""
    if isinstance(work, Arena):
        with work.scratch():
            yield
    else:
        yield


def add_into(into: Any, gradients: Any) -> Any:
    """``into += gradients``, array by array of a nested NamedTuple; without ``into`` the gradients themselves."""
    if into is None:
        return gradients
    for total, gradient in zip(into, gradients, strict=True):
        if isinstance(gradient, tuple):
            add_into(total, gradient)
        elif gradient is not None:
            total += gradient
    return into
