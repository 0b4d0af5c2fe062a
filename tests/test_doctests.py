"""The examples in docstrings give the numbers that stand under them."""

import doctest
import importlib
import pkgutil

import pytest

import linattn_ref.attention

NAMES = [module.name for module in pkgutil.iter_modules(linattn_ref.attention.__path__)]


def run(name):
    return doctest.testmod(importlib.import_module(f"linattn_ref.attention.{name}"), raise_on_error=False)


@pytest.mark.parametrize("name", NAMES)
def test_examples(name):
    assert run(name).failed == 0


PARTS = {"softmax_dense", "softmax_cache", "pattern_softmax", "layer_norm", "dynamic_projection", "depthwise"}
PARTS |= {"linformer_projections", "max_pool", "strided_convolution", "segment_means", "pinv_exact", "pinv_iterative"}


@pytest.mark.parametrize("name", sorted({*linattn_ref.attention.__all__, *PARTS, "lsh_hashing"} - {"feature_maps"}))
def test_there_is_one(name):
    """With numbers: making some, a call, what it gives."""
    assert run(name).attempted >= 4
