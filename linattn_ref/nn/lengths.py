"""Sequences of several lengths in one array: what lies behind the last element of each is padding.

``lengths`` says how many elements each sequence has. What padding contains changes nothing, and its gradient is 0.

>>> lengths_or_all(None, (2,), 5), lengths_or_all(np.array([5, 3]), (2,), 5)
(array([5, 5]), array([5, 3]))
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linattn_ref.op import Array

__all__ = ["Lengths", "as_sequences", "check_lengths", "lengths_or_all"]

Lengths = NDArray[np.integer[Any]]


def check_lengths(name: str, lengths: Any, longest: int) -> None:
    """Check that ``lengths`` has a number from 0 to ``longest`` for each sequence, or is None.

    Raises
    ------
    ValueError
        Naming the argument.
    """
    if lengths is not None and lengths.size and not (lengths.min() >= 0 and lengths.max() <= longest):
        raise ValueError(f"{name}: expected numbers from 0 to {longest}, got {lengths.min()} to {lengths.max()}")


def lengths_or_all(lengths: Lengths | None, leading: tuple[int, ...], longest: int) -> NDArray[np.intp]:
    """``lengths`` in a row; without them every sequence is as long as there is room."""
    if lengths is None:
        return np.full(math.prod(leading), longest)
    return lengths.astype(np.intp).ravel()


def as_sequences(x: Array) -> Array:
    """``x (..., T, V)`` as ``(B, T, V)``, also where there are no frames."""
    return x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:])
