"""Exponential features on a scale that keeps them in range: what a backend may do faster than NumPy.

    phi(k_j) = exp(a(k_j) - r)                               (1)
    phi(q_i) = exp(a(q_i) + r - t_i),   t_i = max_c (a_c(q_i) + r_c)                                         (2)

``a`` are the exponents, ``r`` the scale of the keys, see ``rises.py``. But for the maxima all is elementwise, with
little arithmetic and much memory traffic, so the features are written over the exponents.
"""

import numpy as np

__all__ = ["ROWS", "largest", "of_keys", "of_queries"]

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
        x += r[..., None, :]
        x -= x.max(axis=-1, keepdims=True)
        np.exp(x, out=x)  # (2)
    return exponent


def _some_rows(x):
    """Views of ``ROWS`` rows at a time. On a GPU all at once: each piece of work costs time to start there."""
    size = ROWS if isinstance(x, np.ndarray) else x.shape[-2]
    return (x[..., start : start + size, :] for start in range(0, x.shape[-2], size))
