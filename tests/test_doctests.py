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


WITH_EXAMPLES = [
    *("softmax", "softmax_dense", "softmax_cache"),
    *(
        "bigbird",
        "block_local",
        "linformer",
        "local",
        "long_short",
        "longformer",
        "nystromformer",
        "sparse_transformer",
    ),
    *(
        "depthwise",
        "dynamic_projection",
        "layer_norm",
        "linformer_projections",
        "lsh_hashing",
        "max_pool",
        "pattern_softmax",
    ),
    *("pinv_exact", "pinv_iterative", "segment_means", "strided_convolution"),
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_there_is_one(name):
    """With numbers: making some, a call, what it gives."""
    assert run(name).attempted >= 4
