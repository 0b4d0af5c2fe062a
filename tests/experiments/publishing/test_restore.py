import json
import typing
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import TypeAliasType

from linattn_ref.experiments.publishing import record
from linattn_ref.experiments.publishing.restore import restore


@dataclass
class Inner:
    x: float
    y: int | None


class Outer(NamedTuple):
    array: NDArray[np.float32]
    counts: NDArray[np.int8]
    some: NDArray[np.floating[Any]]
    inner: tuple[Inner, ...]
    named: dict[int, list[float]]
    pair: tuple[str, int]
    anything: dict[str, Any]


def test_what_was_plain_is_what_it_was():
    value = Outer(
        np.float32([[0.1, np.inf]]),
        np.int8([1, 2]),
        np.array([np.nan, 0.5]),
        (Inner(float("nan"), None), Inner(1.0, 2)),
        {3: [1.0, 2.0]},
        ("a", 4),
        {"k": [1, "b"]},
    )
    back = restore(Outer, json.loads(record.json_text(record.plain(value))))
    assert back.array.dtype == np.float32
    assert back.counts.dtype == np.int8
    assert (back.array == value.array).all()
    assert np.isnan(back.some[0])
    assert back.some[1] == 0.5
    assert np.isnan(back.inner[0].x)
    assert back.inner[1] == Inner(1.0, 2)
    assert (back.named, back.pair, back.anything) == (value.named, value.pair, value.anything)


def test_a_type_may_have_a_name():
    """As ``type Numbers[X] = ...`` gives it one, and NumPy 2.5 its ``NDArray``."""
    number = typing.TypeVar("number", bound=np.generic)
    named = TypeAliasType("named", np.ndarray[Any, np.dtype[number]], type_params=(number,))
    found = restore(named[np.int8], [1, 2])
    assert found.dtype == np.int8
    assert found.tolist() == [1, 2]
    assert restore(TypeAliasType("pair", tuple[float, int]), ["nan", 2])[1] == 2


def test_a_record_that_lacks_a_field_says_which():
    with pytest.raises(KeyError, match="counts"):
        restore(Outer, {"array": []})
