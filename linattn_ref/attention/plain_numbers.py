"""Options that are NumPy's numbers: Python's take their place, once, before they are checked or computed with.

NumPy's keep their own range and precision in what is computed with them: ``-np.uint8(3)`` is 253, and a float32 array
plus an ``np.float64`` is float64. `door` does this for the functions behind it; the others have :func:`plain_numbers`.

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
from typing import Any, ParamSpec, TypeVar

import numpy as np

__all__ = ["PLAIN", "PLAIN_BY_PLACE", "options_of", "plain_arguments", "plain_numbers"]

P = ParamSpec("P")
R = TypeVar("R")

PLAIN = {bool, int, float, str, type(None), ModuleType}  # there is nothing to change in these
PLAIN_BY_PLACE = {*PLAIN, np.ndarray}  # nor, where it is no option, in an array


def plain_numbers(function: Callable[P, R]) -> Callable[P, R]:
    """The function, called with Python's numbers for NumPy's."""
    options = options_of(function)

    @functools.wraps(function)
    def with_plain_numbers(*args: P.args, **kwargs: P.kwargs) -> R:
        args, kwargs = plain_arguments(options, args, kwargs)  # type: ignore[assignment]
        return function(*args, **kwargs)

    return with_plain_numbers


def options_of(function: Callable[..., Any]) -> frozenset[str]:
    """The names of what a function takes by keyword only: there an array without axes is a number too."""
    code = function.__code__
    return frozenset(code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount])


def plain_arguments(options: frozenset[str], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a call with Python's numbers; the same objects, if there is nothing to change."""
    for x in args:
        if type(x) is not np.ndarray and _plain(x) is not x:
            args = tuple(map(_plain, args))
            break
    for name, x in kwargs.items():
        if type(x) in PLAIN:
            continue
        number = x[()] if type(x) is np.ndarray and x.ndim == 0 and name in options else x
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
