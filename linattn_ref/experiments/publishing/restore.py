"""Results read back from a figure's record, so that it can be drawn again without being measured again.

`record.plain` made them JSON: names and numbers. What they were is said by the types of the fields, from ``Results``
down, and nothing else is needed::

    results = restore(Results, document["results"])
"""

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

__all__ = ["restore"]

T = TypeVar("T")


def restore(kind: type[T], stored: Any) -> T:
    """What `record.plain` made JSON of.

    Parameters
    ----------
    kind : type
        A NamedTuple or dataclass, a namespace whose annotations say what is no number or text, ``dict[str, X]``,
        ``tuple[X, ...]``, ``list[X]``, ``X | None``, an array type, a number or text: whatever the annotation of a
        field says.
    stored : JSON

    Raises
    ------
    KeyError
        A field is not there: the record was made by an older version of the code.
    """
    return typing.cast(T, _restored(kind, stored))


def _restored(kind: Any, stored: Any) -> Any:
    origin, inside = typing.get_origin(kind) or kind, typing.get_args(kind)
    if hasattr(origin, "__value__"):  # a name for a type, as NDArray is since NumPy 2.5
        return _restored(origin.__value__[inside] if inside else origin.__value__, stored)
    if kind is Any or stored is None:
        return stored
    if origin in (typing.Union, types.UnionType):
        return _restored(next(one for one in inside if one is not types.NoneType), stored)
    if hasattr(kind, "_fields") or dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _restored(hint, stored[name]) for name, hint in hints.items()})
    if isinstance(origin, type) and issubclass(origin, types.SimpleNamespace):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _restored(hints.get(name, Any), item) for name, item in stored.items()})
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
