"""The figures of the sparse patterns: what they show is so, can be saved as JSON, and is drawn in both styles."""

import math

import numpy as np
import pytest
from quick import quick

from linattn_ref.attention import patterns
from linattn_ref.experiments.publishing.pairs import PAIRS
from linattn_ref.experiments.sparse import pattern_graphs, pattern_pictures

RANDOM = list(PAIRS).index("random")
MODULES = (pattern_graphs, pattern_pictures)


@pytest.fixture(scope="module")
def results():
    return {module: quick(module.__name__.rpartition(".")[2]) for module in MODULES}


# --- Pictures -------------------------------------------------------------------------------------------------------


def test_pictures_are_the_patterns(results):
    """Painted where a pair is allowed and nowhere else."""
    got = results[pattern_pictures]
    full, window, dilated, everything = (picture.reasons > 0 for picture in got.longformer)
    assert full.all()
    np.testing.assert_array_equal(window, patterns.local(16, window=2))
    np.testing.assert_array_equal(dilated, patterns.local(16, window=2, dilation=2))
    np.testing.assert_array_equal(everything, patterns.longformer(16, window=2, global_tokens=[0, 5, 15]))
    strided, view, fixed, fixed_view = (picture.reasons > 0 for picture in got.sparse_transformer)
    for kind, matrix, of_pixel in (("strided", strided, view), ("fixed", fixed, fixed_view)):
        expected = patterns.sparse_transformer(36, kind=kind, stride=6)
        np.testing.assert_array_equal(matrix, expected)
        np.testing.assert_array_equal(of_pixel.ravel(), expected[27])


def test_a_global_block_alone_has_no_holes(results):
    whole = results[pattern_pictures].bigbird[2].reasons
    assert (whole[:2] > 0).all()
    assert (whole[:, :2] > 0).all()
    assert not whole[2:, 2:].any()


def test_bigbird_is_the_union_of_its_three_parts(results):
    random, window, whole, everything = (picture.reasons for picture in results[pattern_pictures].bigbird)
    np.testing.assert_array_equal(everything > 0, (random > 0) | (window > 0) | (whole > 0))
    assert (random > 0).sum(axis=1).tolist() == [0] * 2 + [2] * 14  # a global block sees everything anyway
    assert not ((window > 0) & (whole > 0))[2:, 3:].any()
    np.testing.assert_array_equal(everything == RANDOM, random > 0)  # none of them covered by window or global blocks


# --- Graphs ---------------------------------------------------------------------------------------------------------


def test_a_global_block_makes_it_two_layers(results):
    got = results[pattern_graphs]
    for name, parts in pattern_graphs.PARTS.items():
        diameters = np.array(got.graphs[name].diameter)
        assert (diameters == 2).all() == parts.whole
    window = [row[0] for row in got.graphs["window"].diameter]
    assert window == [math.ceil((n - 1) / 2) for n in got.blocks]


def test_a_window_is_clustered_and_random_blocks_are_not(results):
    last = {name: np.mean(graph.clustering[-1]) for name, graph in results[pattern_graphs].graphs.items()}
    assert last["window"] > 0.5 > 5 * last["random"]
    assert last["global"] == 0  # a star has no triangles


def test_random_edges_make_a_window_small(results):
    got = results[pattern_graphs].graphs
    assert max(got["window + random"].diameter[-1]) < got["window"].diameter[-1][0] / 4


def test_exponents(results):
    growth = {name: counted.growth.exponent for name, counted in results[pattern_graphs].pairs.items()}
    for name, expected in {"all pairs": 2, "strided": 1.5, "fixed": 1.5, "window of 64": 1}.items():
        assert growth[name] == pytest.approx(expected, abs=0.005)


def test_nine_blocks_are_enough():
    """A window of 5 and a global block leave 3 of them to draw from."""
    for parts in pattern_graphs.PARTS.values():
        assert parts.pattern(9, np.random.default_rng(0)).shape == (9, 9)
    with pytest.raises(ValueError, match="r: expected at most 2"):
        parts.pattern(8, np.random.default_rng(0))


def test_random_blocks_alone_leave_some_that_nobody_sees():
    """Each of ``n`` blocks is missed by all others with a probability of about ``exp(-r)``."""
    rng = np.random.default_rng(0)
    alone = pattern_graphs.PARTS["random"]
    shares = [1 - (alone.pattern(300, rng) & ~np.eye(300, dtype=bool)).any(axis=0).mean() for _ in range(20)]
    # 6000 blocks, of which about 300 are missed: 4 standard deviations are 0.012.
    assert np.mean(shares) == pytest.approx(math.exp(-pattern_graphs.RANDOM), abs=0.012)
