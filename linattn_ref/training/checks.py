"""What optimisers are given, checked: an error names the argument."""

import itertools
import math
from typing import Any

import numpy as np

from linattn_ref.nested import leaves
from linattn_ref.op.options import is_number
from linattn_ref.op.shapes import FLOATS, Array, is_array

__all__ = ["check_apart", "check_betas", "check_limit", "check_moved", "check_peak", "check_rate", "check_tree"]
__all__ += ["check_trees", "check_writeable"]


def check_tree(name: str, tree: Any) -> dict[str, Array]:
    """Check that there are arrays in it, all of them floats, and return them by their names."""
    found = dict(leaves(tree, name))
    if not found:
        raise TypeError(f"{name}: expected an array with axes, or arrays in NamedTuples, got {tree!r}")
    for field, x in found.items():
        _check_array(field, x)
        if x.dtype not in FLOATS:
            raise TypeError(f"{field}: expected float32 or float64, got {x.dtype}")
    return found


def check_trees(params: Any, grads: Any, *buffers: Any) -> None:
    """Check that ``params`` are floats, and that ``grads`` and the buffers of a state are like them."""
    found = check_tree("params", params)
    for tree, called in ((grads, "grads"), *((buffer, "state") for buffer in buffers)):
        like = {name.removeprefix(called): x for name, x in leaves(tree, called)}
        if [*like] != [name.removeprefix("params") for name in found]:
            raise TypeError(f"{called}: expected the structure of params, got {called}{f', {called}'.join(like)}")
        for (name, x), (field, y) in zip(found.items(), like.items(), strict=True):
            _check_array(f"{called}{field}", y)
            if y.dtype != x.dtype:
                raise TypeError(f"{called}{field}: expected {x.dtype} like {name}, got {y.dtype}")
            if y.shape != x.shape:
                raise ValueError(f"{called}{field}: expected shape of {name} = {x.shape}, got {y.shape}")


def _check_array(name: str, x: Any) -> None:
    """Check that ``*`` and ``**`` are by entry."""
    if not is_array(x):
        raise TypeError(f"{name}: expected a numpy.ndarray, got {type(x).__name__}")


def check_apart(name: str, tree: Any, params: Any) -> None:
    """Check that no two arrays share memory, but for one array in all places of one parameter.

    Else what is done to one in place is done to the other as well.
    """
    pairs = zip(leaves(params), leaves(tree, name), strict=True)
    found = {(id(p), id(x)): (field, x) for (_, p), (field, x) in pairs}
    for (field, x), (later, y) in itertools.combinations(found.values(), 2):
        if np.may_share_memory(x, y) and np.shares_memory(x, y):
            raise ValueError(
                f"{later}: shares memory with {field}; expected an array of its own, or where the two are one"
                " parameter, one array in both places"
            )


def check_writeable(**trees: Any) -> None:
    """Check what is changed in place, in every call: an array may have become read-only."""
    for name, tree in trees.items():
        for field, x in leaves(tree, name):
            if not x.flags.writeable:
                raise ValueError(f"{field}: expected an array that can be written to, for it is changed in place")


def check_moved(params: Any, grads: Any, state: Any, **_: Any) -> None:
    """Check what a step moves."""
    check_writeable(params=params, state=state)


def check_rate(**rates: float) -> None:
    """Each is a finite number of at least 0."""
    for name, rate in rates.items():
        if not (is_number(rate) and math.isfinite(rate) and rate >= 0):
            raise ValueError(f"{name}: expected a finite number of at least 0, got {rate!r}")


def check_limit(**limits: float) -> None:
    """Each is a number above 0."""
    for name, limit in limits.items():
        if not (is_number(limit) and limit > 0):
            raise ValueError(f"{name}: expected a number above 0, got {limit!r}")


def check_peak(peak: float) -> None:
    """A rate that something is learned with."""
    check_rate(peak=peak)
    if peak == 0:
        raise ValueError("peak: expected a rate above 0, with which something is learned; got 0")


def check_betas(betas: tuple[float, float]) -> None:
    """Two numbers of at least 0 and below 1."""
    if np.shape(betas) != (2,) or not all(is_number(beta) and 0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas: expected two numbers of at least 0 and below 1, got {betas!r}")
