"""Keys of length 1, ``k = x / |x|``: no square leaves the range of floats, and the zero vector stays 0."""

from __future__ import annotations

import numpy as np

from linattn_ref.attention.arguments import Array, Mask
from linattn_ref.attention.features.feature_maps_random import or_infinity, unit

__all__ = ["add_rows", "dot", "inverse", "key_of", "length_of"]


def length_of(x: Array) -> Array:
    """``|x| (..., N, 1)``; where its square would leave the range of floats, by way of the largest entry."""
    length = np.sqrt(dot(x, x))  # (..., N, 1)
    limits = np.finfo(x.dtype)
    odd = ~((length > limits.tiny**0.25) & (length < limits.max**0.25))
    if not isinstance(x, np.ndarray):  # a GPU would have to be asked how many are odd
        return np.where(odd, unit(x)[1], length)
    length[odd] = unit(x[odd[..., 0]])[1][..., 0]
    return length


def dot(x: Array, y: Array) -> Array:
    """``x_i . y_i``, ``(..., N, 1)``."""
    return np.einsum("...d,...d->...", x, y)[..., None]


def add_rows(x: Array, y: Array, some: Mask) -> None:
    """``x[some] += y[some]``, in place; a GPU would have to be asked how many rows that are."""
    if isinstance(x, np.ndarray):
        x[some] += y[some]
    else:
        np.copyto(x, x + y, where=some[..., None])


def key_of(x: Array, length: Array) -> Array:
    """``x / |x|``, and 0 for the zero vector."""
    return x / np.where(length == 0, length.dtype.type(1), length)


def inverse(length: Array) -> Array:
    """``1 / |x|``, and 0 for the zero vector."""
    return 1 / or_infinity(length)
