"""Exponential features on a scale that keeps them in range: what a backend may do faster than NumPy.

    phi(k_j) = exp(a(k_j) - r)                               (1)
    phi(q_i) = exp(a(q_i) + r - t_i),   t_i = max_c (a_c(q_i) + r_c)                                         (2)

``a`` are the exponents, ``r`` the scale of the keys, see ``rises.py``. But for the maxima all is elementwise, with
little arithmetic and much memory traffic, so the features are written over the exponents.
"""

import numpy as np

from linattn_ref.attention.parts.masks import in_range

__all__ = ["largest", "of_keys", "of_queries", "rows_at_a_time"]

ROWS = 64  # at a time: with 8 heads and C = 256, half a megabyte of float32, which stays in the cache


def largest(exponent):
    """The largest of each column, ``(..., rows, C) -> (..., C)``."""
    return exponent.max(axis=-2)


def of_keys(exponent, r):
    """``phi (..., rows, C)``, equation (1), for a scale ``r (..., 1 or C)``."""
    for x in _some_rows(exponent):
        x -= r[..., None, :]
        np.exp(x, out=x)  # (1)
    return exponent


def of_queries(exponent, r):
    """``phi (..., rows, C)``, equation (2), for a scale ``r (..., 1 or C)``."""
    for x in _some_rows(exponent):
        x[...] = in_range(x)
        x -= x.max(axis=-1, keepdims=True)  # a part of t, taken first, or r would round away
        x += r[..., None, :]
        x -= x.max(axis=-1, keepdims=True)
        np.exp(x, out=x)  # (2)
    return exponent


def rows_at_a_time(x):
    """How many rows to work on at a time; on a GPU all, since each piece of work costs time to start there."""
    return ROWS if isinstance(x, np.ndarray) else x.shape[-2]


def _some_rows(x):
    """Views of :func:`rows_at_a_time` rows each."""
    size = rows_at_a_time(x)
    return (x[..., start : start + size, :] for start in range(0, x.shape[-2], size))
