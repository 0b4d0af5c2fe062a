"""Options that are on no page, as callers give them: ``out``, ``overwrite_state``, ``capacity``, ``like`` (`entry`)."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from linattn_ref.op.gpu_arrays import is_gpu_call
from linattn_ref.op.libraries import is_on_gpu, origin_of
from linattn_ref.op.options import check_flags, check_sizes, plain
from linattn_ref.op.shapes import Sizes, is_array

__all__ = ["can_be_filled", "check_extras", "check_out", "is_writeable", "with_options"]


def with_options(signature: inspect.Signature, options: dict[str, Any]) -> inspect.Signature:
    """The signature with the options of the entry."""
    more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=x) for name, x in options.items()]
    parameters = [*signature.parameters.values()]
    before = [x for x in parameters if x.kind is not inspect.Parameter.VAR_KEYWORD]
    return signature.replace(parameters=[*before, *more, *parameters[len(before) :]])


def check_extras(extras: dict[str, Any]) -> None:
    """``overwrite_state`` is True or False, ``capacity`` a count, which is made Python's, and ``like`` an array."""
    check_flags(overwrite_state=extras.get("overwrite_state", False))
    if extras.get("capacity") is not None:
        extras["capacity"] = plain(extras["capacity"])
        check_sizes(capacity=extras["capacity"])
    if extras.get("like") is not None and not is_array(extras["like"]):
        raise TypeError(f"like: expected an array, got {type(extras['like']).__name__}")


def check_out(out: Any, sizes: Sizes, others: Iterable[Any] = ()) -> None:
    """``out`` can be written to, is like the output, and no element shares memory with another or with an argument.

    Raises
    ------
    TypeError, ValueError
    """
    shape, dtype = (*sizes["..."], sizes["N"], sizes["M"]), sizes["dtype"]
    if not is_array(out) or out.dtype != dtype:
        got = out.dtype if is_array(out) else origin_of("out", out) if is_on_gpu(out) else type(out).__name__
        kind = "an array on the GPU" if is_gpu_call() else "a numpy.ndarray"
        raise TypeError(f"out: expected {kind} of {dtype}, got {got}")
    if out.shape != shape:
        raise ValueError(f"out: expected shape {shape}, got {out.shape}")
    if not is_writeable(out):
        raise ValueError("out: expected an array that can be written to, got a read-only one")
    if _overlaps_itself(out):
        raise ValueError(f"out: expected axes that do not overlap, got strides {out.strides} for shape {shape}")
    if _shares_memory(out, others):
        raise ValueError("out: expected memory of its own, got an array that shares memory with another argument")


def can_be_filled(out: Any, args: Iterable[Any], options: Mapping[str, Any]) -> bool:
    """What `check_out` says beyond shape and dtype, for a call whose kind is known."""
    others = [*args, *(x for name, x in options.items() if name != "out")]
    return is_writeable(out) and not _overlaps_itself(out) and not _shares_memory(out, others)


def is_writeable(*arrays: Any) -> bool:
    """Whether they may be written over: no NumPy array among them is read-only, as rows are that share memory."""
    return not any(isinstance(x, np.ndarray) and not x.flags.writeable for x in arrays)


def _overlaps_itself(out: Any) -> bool:
    """Whether two elements of ``out``, a NumPy array, share memory."""
    if not isinstance(out, np.ndarray) or out.flags.c_contiguous:
        return False
    reach = out.itemsize
    for stride, length in sorted((abs(stride), n) for stride, n in zip(out.strides, out.shape, strict=True) if n > 1):
        if stride < reach:
            break  # they may
        reach += stride * (length - 1)
    else:
        return False
    low, high = np.lib.array_utils.byte_bounds(out)
    if out.nbytes > high - low:  # more elements than there is memory
        return True
    places = sum(np.ix_(*(s * np.arange(n) for s, n in zip(out.strides, out.shape, strict=True))))
    return bool((np.diff(np.sort(places, axis=None)) < out.itemsize).any())


def _shares_memory(out: Any, x: Any) -> bool:
    """Whether ``out`` has an element in common with an array, or with one in a tuple or list."""
    if isinstance(x, (tuple, list)):
        return any(_shares_memory(out, each) for each in x)
    both = is_array(out) and is_array(x) and isinstance(out, np.ndarray) == isinstance(x, np.ndarray)
    return both and np.may_share_memory(out, x) and np.shares_memory(out, x)
