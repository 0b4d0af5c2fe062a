"""The options that pages share: what each has to be, and NumPy's numbers made Python's."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import numpy as np

from linattn_ref.op.shapes import FLOATS

__all__ = ["check_choice", "check_dtype", "check_flags", "check_made", "check_options", "check_rng", "check_sizes"]
__all__ += ["is_number", "plain", "plain_numbers", "sized"]

P = ParamSpec("P")
R = TypeVar("R")


def plain(x: Any) -> Any:
    """NumPy's number as Python's, which neither wraps around nor widens float32; anything else as it is.

    In a tuple, each number becomes one of Python's.
    """
    if isinstance(x, np.generic) or (isinstance(x, np.ndarray) and x.ndim == 0 and x.dtype.kind in "biuf"):
        return x.item()
    if type(x) is tuple and any(isinstance(part, np.generic) for part in x):
        return tuple(map(plain, x))
    return x


def plain_numbers(function: Callable[P, R]) -> Callable[P, R]:
    """The function, called with Python's numbers for NumPy's, but for arrays; ``@op`` does this itself.

    >>> @plain_numbers
    ... def window_around(i, *, window):
    ...     return i - window, i + window
    >>> window_around(np.uint8(2), window=np.uint8(3))
    (-1, 5)
    """
    kinds = function.__annotations__
    names = enumerate(inspect.signature(function).parameters)
    arrays = {x for each in names for x in each if str(kinds.get(each[1])).startswith("Array")}

    @functools.wraps(function)
    def with_plain_numbers(*args: P.args, **kwargs: P.kwargs) -> R:
        numbers: Any = [x if i in arrays else plain(x) for i, x in enumerate(args)]
        return function(*numbers, **{name: x if name in arrays else plain(x) for name, x in kwargs.items()})  # type: ignore[arg-type]

    return with_plain_numbers


def is_number(x: Any) -> bool:
    """Whether ``x`` is a real number, which True and False are not."""
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def check_flags(**flags: Any) -> None:
    """Each is True or False, NumPy's or Python's."""
    for name, flag in flags.items():
        if not isinstance(plain(flag), bool):
            raise TypeError(f"{name}: expected True or False, got {flag!r}")


def check_sizes(least: int = 1, /, **sizes: Any) -> None:
    """Each is an integer of at least ``least`` that NumPy's integers can hold."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < least:
            raise ValueError(f"{name}: expected an integer of at least {least}, got {size!r}")
        if size > sys.maxsize:
            raise ValueError(f"{name}: expected at most {sys.maxsize}, got an integer of {size.bit_length()} bits")


def sized(*names: str) -> Callable[..., None]:
    """A page's look at sizes alone: those of ``names`` that a call has are at least 1."""
    return lambda **given: check_sizes(**{name: given[name] for name in names if name in given})


def check_rng(rng: Any) -> None:
    """It draws; a seed does not."""
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng: expected a numpy.random.Generator, got {type(rng).__name__}")


def check_options(arguments: dict[str, Any], dtype: Any = np.float64, *, scale_or_none: bool = True) -> None:
    """``scale``, ``eps``, ``state``, ``d_loss`` and what goes with ``causal`` have the right type and value.

    So have ``n`` and ``n_keys``, of a pattern. ``scale`` may be None only where that stands for a number. ``dtype`` is
    that of the arrays, in which numbers have to be finite.
    """
    check_sizes(**{name: arguments[name] for name in ("n", "n_keys") if name in arguments})
    d_loss: Any = arguments.get("d_loss", 0)
    if np.ndim(d_loss) != 0:
        raise ValueError(f"d_loss: expected a number, got shape {np.shape(d_loss)}")
    if not (is_number(d_loss) or getattr(getattr(d_loss, "dtype", None), "kind", "") in ("f", "V")):  # V: bfloat16
        raise TypeError(f"d_loss: expected a number, got {d_loss!r}")
    if "causal" in arguments:
        _check_causal(arguments["causal"], arguments)
    kind_of_scale = "a number or None" if scale_or_none else "a number"
    most = float(np.finfo(dtype).max)
    for name, kind, least in (("scale", kind_of_scale, -most), ("eps", "a number", 0)):
        x: Any = arguments.get(name)
        if name not in arguments or (x is None and name == "scale" and scale_or_none):
            continue
        if not is_number(x):
            raise TypeError(f"{name}: expected {kind}, got {x!r}")
        if not least <= x <= most:
            where = f" in {np.dtype(dtype)}" * (most < abs(x) <= sys.float_info.max)
            raise ValueError(f"{name}: expected a finite number{where}{' of at least 0' * (least == 0)}, got {x!r}")


def _check_causal(causal: bool, arguments: dict[str, Any]) -> None:
    if not causal:
        if arguments.get("state") is not None:
            raise ValueError("state: continuing from a state needs causal=True")
        return
    k = arguments.get("k", arguments.get("qk"))
    if k is not None:
        name, n, keys = "q", arguments.get("q", k).shape[-2], k.shape[-2]
    else:  # a pattern is of places, not of arrays
        name, n, keys = "n", arguments.get("n", 1), arguments.get("n_keys", math.inf)
    if n > keys:
        raise ValueError(f"{name}: causal attention is aligned at the end and needs N <= L, got N = {n} and L = {keys}")


def check_made(leading: Any, key_width: Any, value_width: Any, **_: Any) -> None:
    """What a state is made for: leading axes and two widths."""
    if not isinstance(leading, (tuple, list)):
        raise TypeError(f"leading: expected a tuple of integers, got {leading!r}")
    check_sizes(**{f"leading[{axis}]": plain(size) for axis, size in enumerate(leading)})
    check_sizes(key_width=key_width, value_width=value_width)


def check_dtype(dtype: Any) -> None:
    """``dtype`` is float32 or float64."""
    try:
        dtype = np.dtype(dtype)
        known = dtype in FLOATS
    except TypeError:  # no dtype at all
        known = False
    if not known:
        raise TypeError(f"dtype: expected float32 or float64, got {dtype}")


def check_choice(name: str, x: Any, choices: Iterable[str]) -> None:
    """``x`` is one of the ``choices``."""
    if not (isinstance(x, str) and x in choices):
        raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {x!r}")
