"""Rows of length 1, or a little less, as the delta rule wants queries and keys: smooth, and 0 for a row of 0.

    y = n(x) = r x,   r = 1 / sqrt(|x|^2 + 1e-6)             (1)

The gradient, by hand: ``dr = -r^3 x . dx``, so that

    d_x = r (d_y - y (y . d_y))                              (2)
"""

from __future__ import annotations

import numpy as np

from linattn_ref.attention.arguments import Array

__all__ = ["unit", "unit_backward"]

EPS = 1e-6


def unit(x: Array) -> Array:
    """``n(x)``, ``(..., C)``."""
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + x.dtype.type(EPS))  # (1)


def unit_backward(d_y: Array, x: Array) -> Array:
    """The gradient of ``x``, given that of ``n(x)``."""
    r = 1 / np.sqrt((x * x).sum(axis=-1, keepdims=True) + x.dtype.type(EPS))
    y = r * x  # (1)
    return r * (d_y - y * (y * d_y).sum(axis=-1, keepdims=True))  # (2)
