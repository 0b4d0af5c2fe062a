"""Parameters as one flat array: layers see named arrays, an optimiser one long row of numbers, the same memory.

>>> from typing import NamedTuple
>>> class Params(NamedTuple):
...     w: Array
...     b: Array
>>> flat, params = flatten(Params(w=np.ones((2, 2)), b=np.zeros(2)))
>>> flat[3:5] = 7
>>> params
Params(w=array([[1., 1.],
       [1., 7.]]), b=array([7., 0.]))
>>> [name for name, _ in leaves(params)]
['w', 'b']

An array that stands in two places is learned as one: it has one view, in both, and what is added ``into`` either is the
gradient of the one.

>>> e = np.ones((2, 3))
>>> flat, tied = flatten((e, e))
>>> flat.size, tied[0] is tied[1]
(6, True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from linattn_ref.attention.arguments import FLOATS, Array
from linattn_ref.nested import leaves, map_arrays

__all__ = ["flatten", "leaves", "views", "zeros_like"]

Tree = TypeVar("Tree")  # a NamedTuple of arrays and of such NamedTuples; None where there is nothing


def zeros_like(params: Tree) -> Tree:
    """Zeros in the structure of ``params``, for gradients."""
    return _map_once(np.zeros_like, params)


def flatten(params: Tree) -> tuple[Array, Tree]:
    """All numbers in one new row, and ``params`` again as views of it.

    Raises
    ------
    TypeError
        Arrays of two dtypes, or none at all.
    """
    dtypes = {array.dtype for _, array in leaves(params)}
    if len(dtypes) != 1 or not dtypes <= set(FLOATS):
        raise TypeError(f"params: expected arrays all float32 or all float64, got {sorted(map(str, dtypes))}")
    flat = np.concatenate([array.ravel() for array in _distinct(params)])
    return flat, views(flat, params)


def views(flat: Array, params: Tree) -> Tree:
    """Views of ``flat``, one array after the other, in the structure of ``params``.

    Raises
    ------
    ValueError
        ``flat`` has not as many numbers as ``params``.
    """
    count = sum(array.size for array in _distinct(params))
    if flat.shape != (count,):
        raise ValueError(f"flat: expected shape ({count},), the numbers of params, got {flat.shape}")
    start = 0

    def next_view(array: Array) -> Array:
        nonlocal start
        start += array.size
        return flat[start - array.size : start].reshape(array.shape)

    return _map_once(next_view, params)


def _distinct(params: Any) -> Iterable[Array]:
    """The arrays in order, each once."""
    return {id(array): array for _, array in leaves(params)}.values()


def _map_once(function: Callable[[Array], Array], params: Tree) -> Tree:
    """``params`` with ``function`` of each array: where the same stood in two places, so does what it became."""
    new = {id(array): function(array) for array in _distinct(params)}
    return map_arrays(lambda array: new[id(array)], params)
