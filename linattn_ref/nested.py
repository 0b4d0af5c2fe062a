"""Arrays in tuples in tuples, such as the parameters of a composed layer: named, and changed one by one."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["leaves", "map_arrays"]


def leaves(x: Any, name: str = "", *, strict: bool = True) -> Iterator[tuple[str, NDArray[Any]]]:
    """Every array with the names of the fields that lead to it, ``inner.w``, in order; not None and Python's numbers.

    Raises
    ------
    TypeError
        There is something else in it, and it is ``strict``. A NumPy number is something else: what was an array without
        axes, a parameter, becomes one in any sum or product.
    """
    if isinstance(x, np.ndarray):
        yield name, x
    elif isinstance(x, (tuple, list)):
        for field, part in zip(getattr(x, "_fields", range(len(x))), x, strict=True):
            yield from leaves(part, f"{name}.{field}".removeprefix("."), strict=strict)
    elif strict and x is not None and (not isinstance(x, (int, float)) or isinstance(x, np.generic)):
        raise TypeError(f"{name or 'params'}: expected arrays in NamedTuples, got {type(x).__name__}")


def map_arrays(function: Callable[[Any], Any], x: Any) -> Any:
    """``x`` with ``function`` applied to every array in it."""
    if isinstance(x, (tuple, list)):
        parts = [map_arrays(function, part) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    return function(x) if isinstance(x, np.ndarray) else x
