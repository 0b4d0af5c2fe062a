"""Trees of arrays: parameters, their gradients, an optimiser's state, which are all of one structure.

Layers see named arrays. The same numbers can be seen as one long row, in the same memory:

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

An array that stands in two places is learned as one: it has one view, in both, and its gradient is the sum of what
`backward` returns in the two places.

>>> e = np.ones((2, 3))
>>> flat, both = flatten((e, e))
>>> flat.size, both[0] is both[1]
(6, True)
>>> tied(both, (e, 2 * e))[1]
array([[3., 3., 3.],
       [3., 3., 3.]])
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

import numpy as np

from linattn_ref.nested import leaves, map_arrays
from linattn_ref.op.shapes import FLOATS, Array
from linattn_ref.training.checks import check_apart

__all__ = ["add", "distinct", "flatten", "leaves", "tied", "together", "views", "zeros_like"]

Tree = TypeVar("Tree")  # a NamedTuple of arrays and of such NamedTuples; None where there is nothing


def zeros_like(params: Tree) -> Tree:
    """Return zeros in the structure of ``params``.

    Raises
    ------
    ValueError
        Two arrays share memory, and are not one array in two places.
    """
    return _map_once(np.zeros_like, params)


def together(params: Any, *others: Any) -> Iterator[tuple[Array, ...]]:
    """Go through ``params``, each array once, and through other trees of this structure.

    Where one array of ``params`` stands in several places, what another tree has there is added up, unless that is one
    array too.
    """
    places: dict[int, list[int]] = {}
    arrays = [[array for _, array in leaves(tree)] for tree in (params, *others)]
    for place, array in enumerate(arrays[0]):
        places.setdefault(id(array), []).append(place)
    for some in places.values():
        distinct = ({id(tree[place]): tree[place] for place in some}.values() for tree in arrays)
        yield tuple(first if not more else sum(more, first) for first, *more in distinct)


def tied(params: Tree, grads: Tree) -> Tree:
    """Return the gradients, with one sum wherever ``params`` has one array: that of all its places."""
    sums = {id(array): total for array, total in together(params, grads)}
    places = iter([sums[id(array)] for _, array in leaves(params)])
    return map_arrays(lambda _: next(places), grads)


def add(total: Tree, grads: Tree) -> Tree:
    """Add gradients to others, in place, and return the total."""
    pairs = zip(leaves(total), leaves(grads), strict=True)
    for into, array in {id(into): (into, array) for (_, into), (_, array) in pairs}.values():  # one of two names once
        into += array
    return total


def flatten(params: Tree) -> tuple[Array, Tree]:
    """All numbers in one new row, and ``params`` again as views of it.

    Raises
    ------
    TypeError
        Arrays of two dtypes or of integers, or none at all.
    ValueError
        Two arrays share memory, and are not one array in two places.
    """
    dtypes = {array.dtype for _, array in leaves(params)}
    if len(dtypes) != 1 or not dtypes <= set(FLOATS):
        raise TypeError(f"params: expected arrays all float32 or all float64, got {sorted(map(str, dtypes))}")
    flat = np.concatenate([array.ravel() for array in distinct(params)])
    return flat, views(flat, params)


def views(flat: Array, params: Tree) -> Tree:
    """Views of ``flat``, one array after the other, in the structure of ``params``.

    Raises
    ------
    ValueError
        ``flat`` has not as many numbers as ``params``.
    """
    count = sum(array.size for array in distinct(params))
    if flat.shape != (count,):
        raise ValueError(f"flat: expected shape ({count},), the numbers of params, got {flat.shape}")
    start = 0

    def next_view(array: Array) -> Array:
        nonlocal start
        start += array.size
        return flat[start - array.size : start].reshape(array.shape)

    return _map_once(next_view, params)


def distinct(params: Any) -> Collection[Array]:
    """Return the arrays in order, each once."""
    return {id(array): array for _, array in leaves(params)}.values()


def _map_once(function: Callable[[Array], Array], params: Tree) -> Tree:
    """``params`` with ``function`` of each array: where the same stood in two places, so does what it became."""
    check_apart("params", params, params)
    new = {id(array): function(array) for array in distinct(params)}
    return map_arrays(lambda array: new[id(array)], params)
