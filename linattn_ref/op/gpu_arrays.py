"""Arrays on a GPU: what lets the same text of a mechanism run there, with ``kernels=linattn_ref.kernels.cuda``.

CuPy's arrays answer to NumPy's names: ``np.exp(x)`` of one is CuPy's, and so are ``x + y``, ``x @ y`` and ``x[...]``.
What is needed at the entry of a function that users call, :func:`with_gpu_arrays` does:

    in    arrays of CuPy, PyTorch or Numba become CuPy's, of the same memory, also those in a state
    then  the text, on the caller's GPU and stream, in PyTorch's memory if the caller's is; loops are kernels
    out   all arrays become the caller's library's again, of the same memory

NumPy's arrays go straight through. So that one text does for both, it makes new arrays like others
(``np.zeros_like(q, shape=...)``, ``np.asarray(omega, like=q)``), chooses by ``np.where``, and asks no number of an
array: ``float(x)``, ``if x.any()`` or ``x[mask]`` would have to wait for the GPU and copy from it. Only
these do so: `linattn_ref.kernels.common.rises`; `linattn_ref.attention.parts.packed`, which reads the offsets;
`negative_similarity_fraction`, which returns a float; and `pinv_exact`, where the caller gives ``rcond``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from inspect import Signature
from typing import Any, TypeVar

import numpy as np

from linattn_ref.op.libraries import as_cupy, as_library_of, as_the_library_of, check_one_origin, is_on_gpu

__all__ = ["is_gpu_call", "is_inside", "to_where", "with_gpu_arrays"]

CONSTANTS = ("omega", "rotations", "buckets")  # small, often NumPy's: copied to the GPU, if they are not there

_INSIDE: ContextVar[Any] = ContextVar("the type of arrays on a GPU within a call", default=())

R = TypeVar("R")


def is_inside(x: Any) -> bool:
    """Whether ``x`` is an array on a GPU, within a call that has such arrays."""
    return isinstance(x, _INSIDE.get())


def is_gpu_call() -> bool:
    """Whether the call that this is part of has arrays on a GPU."""
    return bool(_INSIDE.get())


def to_where(model: Any, x: Any) -> Any:
    """NumPy's arrays in ``x`` where ``model`` is."""
    return _each(lambda leaf: np.asarray(leaf, like=model) if isinstance(leaf, np.ndarray) else leaf, x)


def with_gpu_arrays(function: Callable[[Any, Any], R], signature: Signature, args: Any, kwargs: Any) -> R:
    """``function(args, kwargs)`` with arrays that may be on a GPU, all of one library, which is that of the results.

    ``signature`` says what the arguments are called.
    """
    if _INSIDE.get() or not any(is_on_gpu(x) for _, x in _leaves((args, kwargs))):
        return function(args, kwargs)
    arrays = _arrays_of_call(signature, args, kwargs)
    model = arrays[0][1]
    with as_the_library_of(model):
        views = {id(x): as_cupy(x) for _, x in arrays}
        theirs = {id(views[id(x)]): x for _, x in arrays}  # an array that is written in place is returned as itself

        def give_back(x: Any) -> Any:
            if is_on_gpu(x) and id(x) not in theirs:
                theirs[id(x)] = as_library_of(model, x)
            return theirs.get(id(x), x)

        def view(x: Any) -> Any:
            return views.get(id(x), x)

        inside = _INSIDE.set(type(view(model)))
        try:
            result = function(_each(view, args), _each(view, kwargs))
        finally:
            _INSIDE.reset(inside)
        return _each(give_back, result)


def _arrays_of_call(signature: Signature, args: Any, kwargs: Any) -> list[tuple[str, Any]]:
    """The arrays of a call that have to be on the GPU, each with its argument's name; the first one is there.

    Raises
    ------
    TypeError
        They are not all in one place, or ``kernels`` is a backend without kernels for a GPU.
    """
    call = signature.bind(*args, **kwargs)
    call.apply_defaults()
    kernels = call.arguments.get("kernels")
    if kernels is not None and not hasattr(kernels, "on_gpu"):
        got = getattr(kernels, "__name__", repr(kernels))
        raise TypeError(f"kernels: expected linattn_ref.kernels.cuda for arrays on a GPU, got {got}")
    named = [(name, field, x) for name, argument in call.arguments.items() for field, x in _leaves(argument, name)]
    arrays = [(name, x) for name, _, x in named if is_on_gpu(x)]
    hosts = [(name, field, x) for name, field, x in named if isinstance(x, np.ndarray)]
    check_one_origin(arrays + [(name, x) for name, field, x in hosts if field not in CONSTANTS and _is_data(x)])
    return arrays + [(name, x) for name, field, x in hosts if field in CONSTANTS]


def _is_data(x: Any) -> bool:
    """Of NumPy's arrays, neither a single number nor indices, which may be on the host."""
    return x.ndim > 0 and x.dtype.kind in "fb"


def _leaves(x: Any, field: str = "") -> Iterator[tuple[str, Any]]:
    """All that is in nested tuples, lists and dictionaries, each with the name that it has there."""
    if not isinstance(x, (tuple, list, dict)):
        yield field, x
    elif isinstance(x, dict):
        for name, part in x.items():
            yield from _leaves(part, name)
    else:
        for name, part in zip(getattr(x, "_fields", (field,) * len(x)), x, strict=True):
            yield from _leaves(part, name)


def _each(change: Callable[[Any], Any], x: Any) -> Any:
    """``x`` with each of its leaves changed; itself, if none is."""
    if isinstance(x, dict):
        return {name: _each(change, part) for name, part in x.items()}
    if not isinstance(x, (tuple, list)):
        return change(x)
    parts = [_each(change, part) for part in x]
    if all(a is b for a, b in zip(x, parts, strict=True)):
        return x
    return x._make(parts) if hasattr(x, "_make") else type(x)(parts)
