"""The examples in docstrings give the numbers that stand under them, and every public mechanism and layer has one."""

import doctest
import importlib
import pkgutil

import pytest

from linattn_ref import attention, models, nn, training

NAMES = [
    f"{package.__name__}.{module.name}"
    for package in (attention, nn, training, models)
    for module in pkgutil.iter_modules(package.__path__)
]
PUBLIC = [f"{package.__name__}.{name}" for package in (attention, nn, training) for name in package.__all__]
# Writing files; parts of what has one; the pair that has one in attention.
WITHOUT = {"training.loop", "training.checkpoint", "nn.block", "nn.layer_norm"}


def run(name):
    return doctest.testmod(importlib.import_module(name), raise_on_error=False)


@pytest.mark.parametrize("name", NAMES)
def test_examples(name):
    assert run(name).failed == 0


@pytest.mark.parametrize("name", [name for name in PUBLIC if name.partition(".")[2] not in WITHOUT])
def test_there_is_one(name):
    """With numbers: making some, a call, what it gives."""
    assert run(name).attempted >= 1
