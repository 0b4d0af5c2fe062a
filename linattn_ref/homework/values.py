"""How values cross between processes and into files: as JSON, in which nothing can be hidden. Needs NumPy alone.

An array is a list with a dtype and a shape; a NamedTuple is the name of its class with its fields. Whoever reads one
looks for a class of that name, and takes the fields that this class has.
"""

from __future__ import annotations

import importlib
import json
import tracemalloc
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

__all__ = ["arrays_of", "call", "decode", "dumps", "encode", "finder", "pack", "within"]

DTYPES = "bool", "int32", "int64", "float32", "float64"


def encode(x: Any) -> Any:
    """What :func:`dumps` writes of a value; nothing, for what is no value."""
    if isinstance(x, (bool, int, float, str)) and not isinstance(x, np.generic):
        return x
    if hasattr(x, "__array__") or isinstance(x, complex):
        x = np.asarray(x.detach() if hasattr(x, "detach") else x)  # PyTorch's may have a gradient
        if x.dtype.kind not in "biuf":
            raise TypeError(f"expected an array of real numbers, got one of {x.dtype}")
        if str(x.dtype) not in DTYPES:  # float16, say: JSON needs no other precision
            if x.dtype == np.uint64 and (x > np.iinfo(np.int64).max).any():
                raise TypeError("expected integers that int64 can hold, got a larger one in uint64")
            x = x.astype(np.float64 if x.dtype.kind == "f" else np.int64)
        return {"array": np.array(x), "dtype": str(x.dtype), "shape": list(x.shape)}
    if hasattr(x, "_fields"):
        return {"class": key_of(type(x)), "fields": {name: encode(getattr(x, name)) for name in x._fields}}
    if isinstance(x, dict):
        return {"dict": {str(name): encode(y) for name, y in x.items()}}
    if isinstance(x, (list, tuple)):
        return {"list": [encode(y) for y in x]}
    return None


def dumps(encoded: Any) -> str:
    """As JSON, arrays as lists: made only of what leaves the process, since for large arrays lists take long."""
    return json.dumps(encoded, default=np.ndarray.tolist)


def decode(x: Any, find: Callable[[str], Any], array: Callable[[np.ndarray], Any] = lambda x: x) -> Any:
    """The value; ``find`` looks for a class by its name, and ``array`` makes another library's array."""
    if not isinstance(x, dict):
        return x
    if "array" in x:
        if x["dtype"] not in DTYPES:
            raise ValueError(f"expected an array of one of {', '.join(DTYPES)}, got {x['dtype']!r}")
        return array(np.array(x["array"], dtype=x["dtype"], order="C").reshape(x["shape"]))
    if "class" in x:
        cls, fields = find(x["class"]), x["fields"]
        names = [name for name in getattr(cls, "_fields", ()) if name in fields]
        if len(names) != len(getattr(cls, "_fields", (None,))):
            return tuple(decode(y, find, array) for y in fields.values())
        return cls(**{name: decode(fields[name], find, array) for name in names})
    if "dict" in x:
        return {name: decode(y, find, array) for name, y in x["dict"].items()}
    return tuple(decode(y, find, array) for y in x["list"])


def key_of(cls: type) -> str:
    """The name of a class, and of the file that it is from."""
    return f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"


def finder(modules: Callable[[], list[Any]]) -> Callable[[str], Any]:
    """What looks for a class: one that a module has, that something in it is of, or that a module in it has."""

    def find(key: str) -> Any:
        found = [x for module in modules() for x in vars(module).values()]
        found += [y for x in found if isinstance(x, ModuleType) for y in vars(x).values()]
        classes = (x if isinstance(x, type) else type(x) for x in found)
        return next((x for x in classes if key_of(x) == key), None)

    return find


def arrays_of(module: Any, allowed: tuple[str, ...] | list[str]) -> Callable[[np.ndarray], Any]:
    """What makes arrays for a module: those of PyTorch or JAX, where that is allowed and the module imports it."""
    found = {str(getattr(x, "__name__", "")).partition(".")[0] for x in vars(module).values()}
    if "torch" in allowed and "torch" in found:
        return lambda x: importlib.import_module("torch").from_numpy(np.array(x))
    if "jax" in allowed and "jax" in found:
        importlib.import_module("jax").config.update("jax_enable_x64", True)
        return lambda x: importlib.import_module("jax.numpy").asarray(x)
    return lambda x: x


def pack(name: str, args: tuple[Any, ...], options: dict[str, Any], peak: float) -> dict[str, Any]:
    """A call as JSON has it."""
    packed = {"args": [encode(x) for x in args], "options": {name: encode(x) for name, x in options.items()}}
    return {"call": name, "peak": peak, **packed}


def call(module: Any, request: dict[str, Any], find: Callable[[str], Any], array: Callable[..., Any]) -> Any:
    """Call a function of the module with arguments that came as JSON; what it returns, as JSON."""
    args = [decode(x, find, array) for x in request["args"]]
    options = {name: decode(x, find, array) for name, x in request["options"].items()}
    peak = request["peak"] * isinstance(array(np.empty(0)), np.ndarray)  # the memory of others cannot be measured
    return encode(within(peak, getattr(module, request["call"]))(*args, **options))


def within(peak: float, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with an error where it holds more than ``peak`` KiB at once, besides what it is given.

    Twice: a first call may import something.
    """

    def measured(*args: Any, **options: Any) -> Any:
        for _ in range(2):
            tracemalloc.start()
            try:
                found = function(*args, **options)
                measuring, (_, most) = tracemalloc.is_tracing(), tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            if measuring and most <= peak * 1024:
                return found
        name = getattr(function, "__name__", "it")
        if not measuring:
            raise MemoryError(f"{name} stopped tracemalloc, so that nobody knows how much it held at once")
        raise MemoryError(f"{name} held {most / 1024:.0f} KiB at once; the limit is {peak:g} KiB")

    return measured if peak else function
