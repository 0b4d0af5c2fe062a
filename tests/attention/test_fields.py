"""What is said about the fields of a NamedTuple, in the annotations where shapes are, or by help."""

import importlib
import inspect
import linecache
import pkgutil
from typing import NamedTuple

import pytest

from linattn_ref import attention
from linattn_ref.attention.fields import documented

NAMES = {"Saved", "State", "Params", "Piece", "Gradients", "GradientsWithConv"}
KINDS = {
    f"{kind.__module__.rpartition('.')[2]}.{name}": kind
    for module in pkgutil.iter_modules(attention.__path__)
    for name, kind in vars(importlib.import_module(f"{attention.__name__}.{module.name}")).items()
    if name in NAMES and inspect.isclass(kind)  # no union of several
}


@documented
class Several(NamedTuple):
    """One of each kind."""

    plain: int
    told: list[int]  # with a comment, and = in it
    given: int = 3  # with a default

    def method(self) -> int:
        other: int = 4  # no field
        return other


class Other(NamedTuple):
    """Not documented."""

    after: int  # of the class before


def test_each_kind_of_field():
    assert inspect.getdoc(Several) == (
        "One of each kind.\n\nAttributes\n----------\n"
        "plain : int\ntold : list[int]\n    with a comment, and = in it\ngiven : int\n    with a default"
    )


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_every_field_is_there_with_its_type_or_says_its_shape(kind):
    lines = inspect.getdoc(kind).splitlines()
    if "Attributes" not in lines:
        assert not without_shape(kind)
        return
    for field in kind._fields:
        assert [line for line in lines if line.startswith(f"{field} : ")], field
    assert len([line for line in lines if " : " in line]) == len(kind._fields)


def without_shape(kind):
    """The fields that are arrays without their axes, which ``Float[Array, "... N D"]`` has."""
    written = {name: getattr(x, "__forward_arg__", x) for name, x in kind.__annotations__.items()}
    return [name for name, x in written.items() if x.split(" |")[0] == "Array"]


def test_a_field_without_a_shape_is_told():
    fields = {"q": 'Float[Array, "... N D"]', "k": "Array", "v": "Array | None", "noted": "tuple[Array, ...]"}
    assert without_shape(NamedTuple("Wrong", fields.items())) == ["k", "v"]


def test_without_its_source_a_class_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr(linecache, "getlines", lambda *_: [])
    before = Other.__doc__
    assert documented(Other).__doc__ == before
