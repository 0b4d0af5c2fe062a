"""The examples in docstrings give the numbers that stand under them, and every public mechanism and layer has one."""

import doctest
import importlib
from pathlib import Path

import pytest

import linattn_ref
from linattn_ref import attention, nn, training

PACKAGE = Path(linattn_ref.__file__).parent
NAMES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8") and "cuda" not in path.parts
]
PUBLIC = [f"{package.__name__}.{name}" for package in (attention, nn, training) for name in package.__all__]
# Writing files; parts of what has one.
WITHOUT = [f"linattn_ref.{name}" for name in ("nn.block", "training.checkpoint", "training.folder", "training.loop")]


def run(name):
    return doctest.testmod(importlib.import_module(name), raise_on_error=False)


@pytest.mark.parametrize("name", NAMES)
def test_examples(name):
    assert run(name).failed == 0


@pytest.mark.parametrize("name", PUBLIC)
def test_there_is_one(name):
    """With numbers: making some, a call, what it gives."""
    assert (run(name).attempted == 0) is (name in WITHOUT)


def test_those_without_one_are_public():
    assert {*WITHOUT} <= {*PUBLIC}
