"""Clipping: a gradient that is too long is made shorter, its direction kept.

    g <- g min(1, limit / (|g| + 1e-6))                      (1)

``|g|`` is the length of all gradients together (:func:`by_global_norm`), or of each array (:func:`each`).

>>> g = np.array([3.0, 4.0])
>>> by_global_norm(g, 1.0), g.round(3)
(5.0, array([0.6, 0.8]))
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from linattn_ref.attention.arguments import Array, is_number
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.nested import leaves

__all__ = ["by_global_norm", "each"]

EPS = 1e-6  # PyTorch's
PIECE = 1 << 14  # numbers


@plain_numbers
def by_global_norm(grads: Array, limit: float) -> float:
    """Equation (1) for the flat array of all gradients, in place; the length that it had.

    Raises
    ------
    ValueError
        ``limit`` is not above 0.
    """
    _check_limit(limit)
    # Not np.linalg.norm, nor in float32: the square of a large gradient overflows it. In pieces that stay in the cache.
    rows = grads.reshape(-1)
    pieces = (rows[first : first + PIECE] for first in range(0, rows.size, PIECE))
    length = math.sqrt(math.fsum(float(np.square(piece, dtype=np.float64).sum()) for piece in pieces))
    if limit < length + EPS:
        grads *= limit / (length + EPS)  # (1)
    return length


@plain_numbers
def each(grads: Any, limit: float) -> None:
    """Equation (1) for each array of a nested NamedTuple by itself, in place."""
    for _, array in leaves(grads):
        by_global_norm(array, limit)


def _check_limit(limit: float) -> None:
    if not (is_number(limit) and limit > 0):
        raise ValueError(f"limit: expected a number above 0, got {limit!r}")
