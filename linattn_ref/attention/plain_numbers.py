"""Options that are NumPy's numbers: Python's take their place, once, before they are checked or computed with.

NumPy's keep their own range and precision in what is computed with them: ``-np.uint8(3)`` is 253, and a float32 array
plus an ``np.float64`` is float64. `linattn_ref.op.op` does this for pages; other functions have :func:`plain_numbers`.

>>> import numpy as np
>>> @plain_numbers
... def window_around(i, *, window):
...     return i - window, i + window
>>> window_around(np.uint8(2), window=np.uint8(3))
(-1, 5)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

__all__ = ["PLAIN", "PLAIN_BY_PLACE", "kinds_of", "plain_arguments", "plain_numbers"]

P = ParamSpec("P")
R = TypeVar("R")

PLAIN = {bool, int, float, str, type(None), ModuleType}  # there is nothing to change in these
PLAIN_BY_PLACE = {*PLAIN, np.ndarray}  # nor, where it is no option, in an array


def plain_numbers(function: Callable[P, R]) -> Callable[P, R]:
    """The function, called with Python's numbers for NumPy's."""
    kinds = kinds_of(function)

    @functools.wraps(function)
    def with_plain_numbers(*args: P.args, **kwargs: P.kwargs) -> R:
        args, kwargs = plain_arguments(kinds, args, kwargs)
        return function(*args, **kwargs)

    return with_plain_numbers


class Kinds(NamedTuple):
    """Of the parameters of a function, those that are taken in another way."""

    options: frozenset[str]  # by keyword only: there an array without axes is a number too
    arrays: frozenset[str | int]  # names and places: there a number is what indexing leaves of an array


def kinds_of(function: Callable[..., Any]) -> Kinds:
    """By its signature."""
    code = function.__code__
    names, options = code.co_varnames[: code.co_argcount], code.co_varnames[code.co_argcount :]
    arrays = [x for x in enumerate(names) if str(function.__annotations__.get(x[1])).startswith("Array")]
    return Kinds(frozenset(options[: code.co_kwonlyargcount]), frozenset(part for pair in arrays for part in pair))


def plain_arguments(kinds: Kinds, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a call with Python's numbers; the same objects, if there is nothing to change."""
    for place, x in enumerate(args):
        if type(x) is not np.ndarray and place not in kinds.arrays and (plain := _plain(x)) is not x:
            args = (*args[:place], plain, *args[place + 1 :])
    for name, x in kwargs.items():
        if type(x) in PLAIN or name in kinds.arrays:
            continue
        number = x[()] if type(x) is np.ndarray and x.ndim == 0 and name in kinds.options else x
        if (plain := _plain(number)) is not x:
            kwargs = {**kwargs, name: plain}
    return args, kwargs


def _plain(x: Any) -> Any:
    """A number of Python's for one of NumPy's, also within a tuple or list; anything else itself."""
    if isinstance(x, np.generic):
        return _number(x)
    if not isinstance(x, (tuple, list)) or (x and type(x[0]) is np.ndarray):  # a state, or what a forward pass saved
        return x
    if any(isinstance(part, np.generic) for part in x):
        parts = [_number(part) for part in x]
        return x._make(parts) if hasattr(x, "_make") else type(x)(parts)
    return x


def _number(x: Any) -> Any:
    if isinstance(x, np.integer):
        return int(x)
    if isinstance(x, np.floating):
        return float(x)
    return bool(x) if isinstance(x, np.bool_) else x
