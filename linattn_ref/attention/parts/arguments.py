"""What `shared_heads` and `packed` do alike: change every array of a call, and add an option to a forward pass."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from linattn_ref.op.shapes import Sizes, notation, sizes_of

__all__ = ["each_array", "lengths", "with_option", "with_scale_of"]


def each_array(change: Callable[..., Any], x: Any, *more: Any) -> Any:
    """``change(x, *more)`` of an array, or of every array of a state; all else, such as a feature map, as it is."""
    if hasattr(x, "_fields") and not hasattr(x, "forward"):
        return x._make(each_array(change, part, *more) for part in x)
    return change(x, *more) if getattr(x, "ndim", 0) > 0 else x


def lengths(shape: tuple[int, ...], inner: Any) -> Sizes:
    """What the letters of an output of this ``shape`` stand for, and the dtype, that of what a page saved."""
    *leading, n, m = shape
    return {"...": tuple(leading), "N": n, "M": m, "dtype": sizes_of(inner, {})["dtype"]}


def with_scale_of(state: Any, d_state: Any) -> Any:
    """The gradient of a state on the scale that the state has, where it has one (`sums`)."""
    scale = getattr(state, "log_scale", None)
    return d_state if scale is None else d_state._replace(log_scale=scale)


def with_option(name: str, hint: Any, usual: Any, forward: Callable[..., Any], page_forward: Any) -> Any:
    """``page_forward`` with one more option; given, ``forward(page, option, **arguments)`` is called instead."""
    signature = inspect.signature(page_forward)

    @functools.wraps(page_forward)
    def with_it(*args: Any, **options: Any) -> Any:
        option = options.pop(name, usual)
        if option is usual or (name == "groups" and option == usual):
            return page_forward(*args, **options)
        call = signature.bind(*args, **options)
        call.apply_defaults()
        return forward(sys.modules[page_forward.__module__], option, **call.arguments)

    more = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=usual, annotation=notation(hint))
    with_it.__annotations__ = {**page_forward.__annotations__, name: hint}
    with_it.__signature__ = signature.replace(parameters=[*signature.parameters.values(), more])  # type: ignore[attr-defined]
    return with_it
