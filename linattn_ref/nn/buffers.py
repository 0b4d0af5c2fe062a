"""Memory for results: new arrays, or an arena that hands out again what nobody needs any more.

A step of training makes arrays of the same shapes each time, and new memory from the system is dear: every page of it
is first set to zero, which can take as long as the arithmetic. An arena keeps the memory of the arrays that it has
handed out. Once the last array in a piece of it is gone, the next array of about that size gets it.

>>> arena = Arena()
>>> x, y = arena((2, 3), np.float32), arena((2, 3), np.float32)
>>> np.may_share_memory(x, y)
False
>>> first = x.ctypes.data
>>> del x
>>> arena((2, 3), np.float32).ctypes.data == first
True
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable
from sys import getrefcount
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from linattn_ref.attention.arguments import Array

__all__ = ["Arena", "Work", "add_into", "fresh"]

ALIGNMENT = 64  # bytes: a cache line, and the widest vector
WASTE = 1.25  # times its size an array may be given

Work = Callable[[tuple[int, ...], Any], Array]  # shape, dtype -> an array that may hold anything


def fresh(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """A new array."""
    return np.empty(shape, dtype)


class Arena:
    """Arrays in memory that is kept.

    An array holds the piece of memory that it is a view of, and so does each view of it. That is what Python counts:
    a piece that only the arena holds is free. So no array changes while somebody has it, and what a backward pass lets
    go of on its way is used again at once.
    """

    def __init__(self) -> None:
        self._pieces: list[NDArray[np.uint8]] = []  # from small to large

    @property
    def nbytes(self) -> int:
        """Of all memory that is kept: the most that was in use at once, and what fitted no array."""
        return sum(piece.nbytes for piece in self._pieces)

    def __call__(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An array that may hold anything."""
        dtype = np.dtype(dtype)
        size = math.prod(shape) * dtype.itemsize
        piece = self._free(size + ALIGNMENT)
        first = -piece.ctypes.data % ALIGNMENT
        return piece[first : first + size].view(dtype).reshape(shape)

    def _free(self, size: int) -> NDArray[np.uint8]:
        """The smallest piece that is free and large enough; a new one, in place of one that is too small by a bit."""
        too_small = None
        for index, piece_size in enumerate(map(len, self._pieces)):
            if size <= WASTE * piece_size and piece_size <= WASTE * size and getrefcount(self._pieces[index]) == FREE:
                if piece_size >= size:
                    return self._pieces[index]
                too_small = index
        if too_small is not None:
            del self._pieces[too_small]
        new = np.empty(size, np.uint8)
        insort(self._pieces, new, key=_size)
        return new


def _size(piece: NDArray[np.uint8]) -> int:
    return piece.size


_ONE = [np.empty(1, np.uint8)]
FREE = getrefcount(_ONE[0])  # of what only a list holds


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
