"""The comparison of all mechanisms: its figure on random heads, its costs, and what each is measured against."""

import json
from pathlib import Path

import numpy as np
import pytest
from quick import drawn, quick

from linattn_ref.experiments.cost import comparison
from linattn_ref.experiments.measuring.counting import count
from linattn_ref.experiments.measuring.heads import random_heads


@pytest.fixture(scope="module")
def results():
    return quick("comparison")


@pytest.fixture
def heads():
    """One sentence, one layer, two heads, N = 32: one chunk of LSH attention."""
    rng = np.random.default_rng(1)
    return random_heads(rng, sentences=1, layers=1, heads=2, length=comparison.NEAR, width=4)


def test_drawing(results):
    figure = drawn("comparison")
    for axis in figure.axes:
        assert len(axis.lines) == len(comparison.WAYS) + 3  # two ranks of the SVD, and softmax attention's cost
        assert len(axis.texts) <= 7
        assert len(axis.collections) == len(axis.texts) - 2  # a bar for each that is named, but the truncated SVD
    assert {name for family in comparison.FAMILIES.values() for name in family} == set(comparison.WAYS)


@pytest.mark.parametrize("name", ["linformer", "nystromformer"])
def test_nothing_of_a_rank_is_nearer_to_the_matrix_than_the_truncated_svd(results, name):
    for size, error in zip(results.ways[name].sizes, results.ways[name].matrix.by_layer, strict=True):
        assert (error >= results.svd.matrix.by_layer[results.svd.sizes.index(size)]).all()


def test_linformer_costs_twice_its_reduced_length_over_the_length(results):
    length = results.shape[0]
    np.testing.assert_allclose(
        results.ways["linformer"].cost, [2 * r / length for r in results.ways["linformer"].sizes]
    )


@pytest.mark.parametrize(
    ("name", "size", "cost"),
    [
        ("local", 32, 1),
        ("longformer", 32, 1 + 2 / 32),  # the two global queries once more
        ("bigbird", 0, 1),
        ("sparse_transformer", 32, 1),  # a single tile, its upper half too
        ("reformer", 1, 2 + 1 / 8),  # the empty chunk before the only one; and the hash
    ],
)
def test_where_all_pairs_are_allowed_the_error_is_rounding(heads, name, size, cost):
    way = comparison.WAYS[name]._replace(sizes=(size,))
    curve = comparison.measure(way, heads, np.random.default_rng(0), quick=False)
    assert curve.output.by_layer.max() < 1e-5
    assert curve.matrix.by_layer.max() < 1e-5
    np.testing.assert_allclose(curve.cost, cost)


def test_of_the_rest_none_is_exact(heads):
    for name in ("linformer", "nystromformer", "performer", "rfa", "linear", "long_short"):
        way = comparison.WAYS[name]
        curve = comparison.measure(way._replace(sizes=way.sizes[:1]), heads, np.random.default_rng(0), quick=False)
        assert curve.output.low.min() > 0.01


@pytest.mark.parametrize("name", comparison.WAYS)
def test_the_costs_of_the_record_are_those_of_this_code(name):
    stored = json.loads((Path(__file__).parents[3] / "figures" / "comparison.json").read_text(encoding="utf-8"))
    (n, d, _), way, rng = stored["results"]["shape"], comparison.WAYS[name], np.random.default_rng(0)
    forwards = [way.make(size, n, d, rng) for size in way.sizes]
    qkv = rng.standard_normal((3, n, d), np.float32)
    found = [count(forward, *qkv).multiply_adds / (n * n * 2 * d) for forward in forwards]
    assert stored["results"]["ways"][name]["cost"] == found
