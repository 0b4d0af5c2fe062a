"""A matrix that serves several heads: its gradient is the sum of theirs."""

from __future__ import annotations

from linattn_ref.attention.parts.masks import mix
from linattn_ref.op import Array

__all__ = ["product_for", "sum_to_shape"]


def sum_to_shape(x: Array, shape: tuple[int, ...]) -> Array:
    """The gradient of broadcasting: ``x`` summed over the axes along which an array of ``shape`` was repeated."""
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    repeated = tuple(axis for axis, size in enumerate(shape) if size == 1 and x.shape[axis] != 1)
    return x.sum(axis=repeated, keepdims=True)


def product_for(shape: tuple[int, ...], a: Array, b: Array) -> Array:
    """``a b^T`` for ``a (..., R, D)``, ``b (..., L, D)``, summed to ``shape``: over the heads that one matrix serves.

    Those heads stand beside one another along the inner axis, ``(R, H D) (H D, L)``, so that the sum is part of one
    product, and the ``(R, L)`` numbers of each head are never there.
    """
    heads = a.ndim - 2
    sizes = (1,) * (a.ndim - len(shape)) + shape
    served = [axis for axis in range(heads) if sizes[axis] == 1]
    own = [axis for axis in range(heads) if sizes[axis] != 1]
    order = (*own, heads, *served, heads + 1)
    leading = [a.shape[axis] for axis in own]
    a = a.transpose(order).reshape(*leading, a.shape[-2], -1)  # (own heads, R, served heads * D)
    b = b.transpose(order).reshape(*leading, b.shape[-2], -1)  # (own heads, L, served heads * D)
    return mix(a, b.mT).reshape(shape)
