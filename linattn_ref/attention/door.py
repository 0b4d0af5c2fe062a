"""The door of a function that users call: arguments are checked there once, and arrays on a GPU are taken through.

    @door(check_forward)
    def forward(q, k, v, *, causal=False, ...):
        ...

Behind it stands the mathematics alone. ``check_forward`` has those of the parameters that it looks at, under the same
names, and ``**_`` for the others; it raises what there is to say. Who has checked already, as a model that calls the
same layer a thousand times, calls ``forward.unchecked``, which is the function itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import numpy as np

from linattn_ref.attention.plain_numbers import PLAIN, PLAIN_BY_PLACE, kinds_of, plain_arguments
from linattn_ref.op.gpu_arrays import with_gpu_arrays
from linattn_ref.op.libraries import is_on_gpu

__all__ = ["Checked", "door"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Checked(Protocol[P, R_co]):
    """A function behind its door."""

    @property
    def unchecked(self) -> Callable[P, R_co]:
        """The same without the door."""

    @property
    def check(self) -> Callable[..., None]:
        """What the door looks at, for whoever looks once and calls often."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


def door(check: Callable[..., None]) -> Callable[[Callable[P, R]], Checked[P, R]]:
    """Have ``check`` look at the arguments of the function first; arrays on a GPU go through as CuPy's.

    Both get Python's numbers for NumPy's: `plain_numbers`.
    """

    def build(function: Callable[P, R]) -> Checked[P, R]:
        kinds = kinds_of(function)

        @functools.wraps(function)
        def check_then_call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                check(*args, **kwargs)
            except TypeError:
                if _binds(function, args, kwargs):
                    raise
            return function(*args, **kwargs)  # an argument that is missing, or unknown, it names itself

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            if not (PLAIN_BY_PLACE.issuperset(map(type, args)) and PLAIN.issuperset(map(type, kwargs.values()))):
                args, kwargs = plain_arguments(kinds, args, kwargs)
            if args and type(args[0]) is np.ndarray and not (len(args) > 1 and _is_saved_on_gpu(args[1])):
                try:
                    check(*args, **kwargs)
                except TypeError:
                    pass
                else:
                    return function(*args, **kwargs)
                return check_then_call(*args, **kwargs)  # which says what was wrong
            return with_gpu_arrays(check_then_call, *args, **kwargs)

        checked.unchecked, checked.check = function, check  # type: ignore[attr-defined]
        return cast("Checked[P, R]", checked)

    return build


def _binds(function: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Whether a call has the arguments that the function needs, and no others."""
    from inspect import signature  # NumPy alone imports less

    try:
        signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _is_saved_on_gpu(x: Any) -> bool:
    """Whether ``x`` is what a forward pass saved, its first array on a GPU: no gradient of NumPy's goes with that."""
    if not isinstance(x, tuple):
        return False
    while isinstance(x, tuple):
        x = x[0]
    return is_on_gpu(x)
