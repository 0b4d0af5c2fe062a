"""What a figure found, by name, and how it is read back from a record, so that nothing has to be measured again.

A figure's ``compute`` returns `Results`: numbers, words, arrays, and more of the same inside, named once, where they
are made. `record.plain` makes them JSON, and they come back as they are::

    results = restore(Results, document["results"])

What has methods of its own is a type, and is restored by the types of its fields. By hand, since cattrs and pydantic
know neither NumPy's arrays nor names without a type, and would be a dependency for these lines.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

__all__ = ["Results", "restore"]

T = TypeVar("T")
NO_NUMBERS = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}  # as `record.plain` writes them, for JSON has none


class Results(dict[str, Any]):
    """Names and what they stand for: ``results.seconds`` is ``results["seconds"]``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no {name} among {', '.join(self)}") from None


def restore(kind: type[T], stored: Any) -> T:
    """What `record.plain` made JSON of.

    Parameters
    ----------
    kind : type
        `Results`, a NamedTuple or dataclass, ``dict[str, X]``, ``tuple[X, ...]``, ``list[X]``, ``X | None``, an array
        type, a number or text: whatever the annotation of a field says.
    stored : JSON

    Raises
    ------
    KeyError
        A field is not there: the record was made by an older version of the code.
    """
    return typing.cast(T, _restored(kind, stored))


def _read(stored: Any) -> Any:
    """Names are `Results`, rows of numbers an array, other rows a tuple."""
    if isinstance(stored, dict):
        return Results({name: _read(item) for name, item in stored.items()})
    if not isinstance(stored, list):
        return NO_NUMBERS.get(stored, stored) if isinstance(stored, str) else stored
    inside = tuple(map(_read, stored))
    try:
        array = np.array(inside)
    except ValueError:  # rows of different lengths
        return inside
    return array if inside and array.dtype.kind in "biuf" else inside


def _restored(kind: Any, stored: Any) -> Any:
    origin, inside = typing.get_origin(kind) or kind, typing.get_args(kind)
    if hasattr(origin, "__value__"):  # a name for a type, as NDArray is since NumPy 2.5
        return _restored(origin.__value__[inside] if inside else origin.__value__, stored)
    if kind is Results:
        return _read(stored)
    if kind is Any or stored is None:
        return stored
    if origin in (typing.Union, types.UnionType):
        return _restored(next(one for one in inside if one is not types.NoneType), stored)
    if hasattr(kind, "_fields") or dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _restored(hint, stored[name]) for name, hint in hints.items()})
    if origin is np.ndarray:
        return _array(typing.get_args(inside[1])[0], stored)
    if origin in (dict, Mapping):
        return {inside[0](key): _restored(inside[1], item) for key, item in stored.items()}
    if origin is tuple and inside[-1] is not Ellipsis:
        return tuple(_restored(one, item) for one, item in zip(inside, stored, strict=True))
    if origin in (tuple, list, Sequence):
        sequence = list if origin is list else tuple
        return sequence(_restored(inside[0], item) for item in stored)
    return kind(stored)  # float("nan") too


def _array(number: Any, stored: Any) -> Any:
    """Of a dtype that the annotation names, or the one that the numbers have."""
    concrete = isinstance(number, type) and number not in (Any, np.generic, np.floating, np.integer)
    array = np.array(stored, number if concrete else None)
    return array.astype(np.float64) if array.dtype.kind == "U" else array  # "nan" among the numbers
