"""What a figure found, by name, and how it is read back from a record, so that nothing has to be measured again.

A figure's ``compute`` returns `Results`: numbers, words, arrays, and more of the same inside, named once, where they
are made. `record.plain` makes them JSON, and they come back as they are::

    results = restore(Results, document["results"])

What has methods of its own is a kind of `Results`, and where such stand inside, annotations say so: of the other fields
nothing has to be known. By hand, since cattrs and pydantic know neither NumPy's arrays nor names without a type.
"""

import typing
from typing import Any

import numpy as np

__all__ = ["Results", "restore"]

NO_NUMBERS = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}  # as `record.plain` writes them, for JSON has none


class Results(dict[str, Any]):
    """Names and what they stand for: ``results.seconds`` is ``results["seconds"]``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no {name} among {', '.join(self)}") from None


def restore(kind: Any, stored: Any) -> Any:
    """What `record.plain` made JSON of: names are `Results`, rows of numbers an array, other rows a tuple.

    Parameters
    ----------
    kind : type
        `Results` or a kind of it, whose annotations say which fields are such; or ``dict[str, X]``, ``tuple[X, ...]``.
    stored : JSON
    """
    inside = typing.get_args(kind)
    if isinstance(stored, dict):
        fields = {} if inside else typing.get_type_hints(kind)
        found = {name: restore(inside[-1] if inside else fields.get(name, Results), x) for name, x in stored.items()}
        return found if inside else kind(found)
    if not isinstance(stored, list):
        return NO_NUMBERS.get(stored, stored) if isinstance(stored, str) else stored
    rows = tuple(restore(inside[0] if inside else Results, x) for x in stored)
    try:
        array = np.array(rows)
    except ValueError:  # rows of different lengths
        return rows
    return array if rows and array.dtype.kind in "biuf" else rows
