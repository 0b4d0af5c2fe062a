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

from linattn_ref.op import op
from linattn_ref.training.checks import check_limit, check_tree, check_writeable
from linattn_ref.training.parameters import distinct

__all__ = ["by_global_norm", "each"]

EPS = 1e-6  # PyTorch's
PIECE = 1 << 14  # numbers


def look(grads: Any, limit: float) -> None:
    check_tree("grads", grads)
    check_limit(limit=limit)


def check_values(grads: Any, limit: float) -> None:
    if limit < math.inf:  # else it is measured and left alone
        check_writeable(grads=grads)


@op(look=look, values=check_values)
def by_global_norm(grads: Any, limit: float) -> float:
    """Equation (1) for all gradients together, an array or a tree of them, in place; return the length they had.

    Raises
    ------
    TypeError, ValueError
        There is no array in ``grads``, or one that is not of floats or cannot be written to; ``limit`` is not above 0.
    """
    arrays = distinct(grads)
    # Not np.linalg.norm, nor in float32: the square of a large gradient overflows it. In pieces that stay in the cache.
    rows = (array.reshape(-1) for array in arrays)
    pieces = (row[first : first + PIECE] for row in rows for first in range(0, row.size, PIECE))
    with np.errstate(over="ignore"):
        squares = [float(np.square(piece, dtype=np.float64).sum()) for piece in pieces]
    length = math.sqrt(math.fsum(squares) if math.isfinite(sum(squares)) else sum(squares))  # fsum raises on overflow
    if length == math.inf and (largest := max(float(abs(array).max(initial=0)) for array in arrays)) < math.inf:
        length = largest * math.hypot(*(float(np.linalg.norm(np.ravel(array / largest))) for array in arrays))
    if limit < length + EPS:
        for array in arrays:
            array *= limit / (length + EPS)  # (1)
    return length


@op(look=look, values=check_values)
def each(grads: Any, limit: float) -> float:
    """Equation (1) for each array of a tree by itself, in place; return the length that all together had."""
    length = by_global_norm(grads, math.inf)
    for array in distinct(grads):
        by_global_norm(array, limit)
    return length
