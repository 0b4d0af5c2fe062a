"""Patterns as graphs: steps against a breadth-first search, and what is known of each graph."""

import math
from collections import deque

import numpy as np
import pytest

from linattn_ref.attention import patterns
from linattn_ref.experiments.measuring.scaling import growth
from linattn_ref.theory import pattern_graphs


def breadth_first(pattern):
    n = len(pattern)
    found = np.full((n, n), np.inf)
    for start in range(n):
        found[start, start] = 0
        queue = deque([start])
        while queue:
            i = queue.popleft()
            for j in np.flatnonzero(pattern[i]):
                if found[start, j] == np.inf:
                    found[start, j] = found[start, i] + 1
                    queue.append(j)
    return found


@pytest.mark.parametrize("density", [0.02, 0.1, 0.5])
def test_steps(density):
    pattern = np.random.default_rng(0).random((40, 40)) < density
    np.testing.assert_array_equal(pattern_graphs.steps(pattern), breadth_first(pattern))


def test_steps_are_layers():
    """Products of the pattern with itself, each with the residual connection."""
    pattern = patterns.bigbird(60, block=5, random_blocks=np.random.default_rng(1).integers(0, 12, (12, 1)))
    reaches, layers = np.eye(60, dtype=bool), pattern | np.eye(60, dtype=bool)
    for count in range(4):
        np.testing.assert_array_equal(pattern_graphs.steps(pattern) <= count, reaches)
        reaches = reaches @ layers


# --- The star graph property ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 17, 60])
@pytest.mark.parametrize("token", [0, -1, "middle"])
def test_with_one_global_token_all_are_within_two_steps(n, token):
    token = n // 2 if token == "middle" else token
    pattern = patterns.longformer(n, window=1, global_tokens=[token])
    assert pattern_graphs.within_steps(pattern, 2)
    assert pattern_graphs.within_steps(pattern, 1) == pattern.all()
    assert pattern.all() == (n <= 2 or (n == 3 and token != 1))


def test_without_a_global_token_they_are_not():
    assert not pattern_graphs.within_steps(patterns.longformer(60, window=2, global_tokens=[]), 2)


def test_a_token_that_only_sees_or_is_only_seen_is_no_centre():
    """Both directions are needed: the row brings information in, the column takes it out again."""
    for axis in (0, 1):
        pattern = patterns.local(30, window=1)
        pattern[(0, slice(None)) if axis == 0 else (slice(None), 0)] = True
        assert not pattern_graphs.within_steps(pattern, 2)


@pytest.mark.parametrize("n", [5, 12, 33, 100])
def test_one_global_block_does_it_for_bigbird(n):
    drawn = np.random.default_rng(0).integers(0, -(-n // 4), (-(-n // 4), 2))
    for random_blocks in (None, drawn):
        pattern = patterns.bigbird(n, block=4, global_blocks=(1,), random_blocks=random_blocks)
        assert pattern_graphs.within_steps(pattern, 2)


# --- Diameter and clustering ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 9, 50])
@pytest.mark.parametrize("window", [1, 2, 7])
def test_diameter_of_a_window(n, window):
    assert pattern_graphs.diameter(patterns.local(n, window=window)) == math.ceil((n - 1) / window)


def test_diameter_of_what_is_not_connected():
    assert pattern_graphs.diameter(patterns.block_local(6, block=3)) == math.inf
    assert pattern_graphs.diameter(patterns.block_local(3, block=3)) == 1
    assert pattern_graphs.diameter(np.zeros((1, 1), bool)) == 0
    assert pattern_graphs.diameter(patterns.local(6, window=2, causal=True)) == math.inf  # nobody sees the future


def test_clustering_by_counting_triangles():
    pattern = np.random.default_rng(3).random((25, 25)) < 0.15
    edges = (pattern | pattern.T) & ~np.eye(25, dtype=bool)
    shares = []
    for i in range(25):
        friends = np.flatnonzero(edges[i])
        pairs = [(a, b) for a in friends for b in friends if a < b]
        shares.append(np.mean([edges[a, b] for a, b in pairs]) if pairs else 0.0)
    assert pattern_graphs.clustering(pattern) == pytest.approx(np.mean(shares), abs=1e-12)


def test_clustering_that_is_known():
    assert pattern_graphs.clustering(np.ones((6, 6), bool)) == 1
    star = np.zeros((9, 9), bool)
    star[0] = star[:, 0] = True
    assert pattern_graphs.clustering(star) == 0
    # On a ring of 2w neighbours it is 3 (w - 1) / (2 (2w - 1)) (Watts and Strogatz); the ends of a band have more.
    n, w = 400, 5
    ring = patterns.local(n, window=w)
    ring |= np.abs(np.arange(n)[:, None] - np.arange(n)) >= n - w
    assert pattern_graphs.clustering(ring) == pytest.approx(3 * (w - 1) / (2 * (2 * w - 1)), abs=1e-12)


def test_patterns_only():
    for wrong, error in ((np.ones((2, 3), bool), ValueError), (np.ones((2, 2)), TypeError), ([[True]], TypeError)):
        for function in (pattern_graphs.steps, pattern_graphs.clustering):
            with pytest.raises(error, match=r"^pattern: "):
                function(wrong)


# --- Pairs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 6, 7, 8, 30, 61])
@pytest.mark.parametrize("stride", [1, 3, 7, 100])
@pytest.mark.parametrize("kind", patterns.KINDS)
def test_pairs_are_those_of_the_matrix(n, stride, kind):
    for summary in {1, min(2, stride), stride}:
        options = {"kind": kind, "stride": stride, "summary": summary}
        per_row = patterns.sparse_transformer(n, **options).sum(axis=1)
        np.testing.assert_array_equal(pattern_graphs.pairs_per_row(n, **options), per_row)
        assert pattern_graphs.pairs(n, **options) == per_row.sum()


@pytest.mark.parametrize("kind", ["strided", "fixed"])
def test_pairs_grow_as_n_to_the_three_halves(kind):
    """At a stride of ``sqrt(N)``; not as ``N log N``, which over these lengths has an exponent of 1.1."""
    lengths = [4**e for e in range(4, 11)]  # 256 ... 1048576, squares
    counts = [pattern_graphs.pairs(n, kind=kind, stride=math.isqrt(n)) for n in lengths]
    assert growth(lengths, counts).exponent == pytest.approx(1.5, abs=0.005)  # lower orders are 1/sqrt(N) of it
    assert growth(lengths, [n * math.log(n) for n in lengths]).exponent < 1.1
    leading = {"strided": 1.5, "fixed": 1.0}[kind]
    assert counts[-1] / lengths[-1] ** 1.5 == pytest.approx(leading, rel=0.002)


def test_a_fixed_stride_is_quadratic():
    lengths = [4**e for e in range(6, 11)]
    counts = [pattern_graphs.pairs(n, kind="strided", stride=64) for n in lengths]
    assert growth(lengths, counts).least > 1.9


@pytest.mark.parametrize("n", [100, 1000, 10000])
def test_best_stride(n):
    best = pattern_graphs.best_stride(n)
    assert best == pytest.approx(math.sqrt(n / 2), abs=2)
    counts = [pattern_graphs.pairs(n, kind="strided", stride=stride) for stride in (best - 1, best, best + 1)]
    assert min(counts) == counts[1]
