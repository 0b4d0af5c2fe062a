"""The recall figure on a few vectors whose neighbours are known."""

import numpy as np
import pytest
from quick import drawn, quick

from linattn_ref.attention import reformer
from linattn_ref.experiments.sparse import lsh_recall


@pytest.fixture(scope="module")
def results():
    return quick("lsh_recall")


def test_drawing(results):
    left, middle, right = drawn("lsh_recall").axes
    assert len(left.lines) == 2 * len(lsh_recall.COLLISION_BUCKETS)
    assert len(middle.lines) == 2 * len(results.by_buckets)
    assert len(right.lines) == len(results.by_chunk) + 1


def test_more_rounds_never_meet_fewer(results):
    for each in (*results.by_buckets, *results.by_chunk):
        for values in (each.recall, each.met, each.weight):
            assert (np.diff(values) >= 0).all()
            assert 0 < values[0] <= values[-1] <= 1


def test_tight_groups_are_found_in_one_round():
    """Four groups of eight, each in a direction of its own: all seven others of the group are met, and few else."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.eye(4, 6), 8, axis=0) + 1e-3 * rng.standard_normal((32, 6))
    found = lsh_recall.recall_of(groups[None], 64, 8, (1, 8), 7, rng)
    assert found.recall[0] > 0.7
    assert found.recall[-1] == 1
    everything = lsh_recall.recall_of(groups[None], 4, 32, (1,), 7, rng)
    assert (everything.recall, everything.met, everything.weight) == ([1], [1], [pytest.approx(1)])


def test_recall_counts_the_pattern_that_attention_uses():
    x = np.random.default_rng(0).standard_normal((1, 20, 4))
    found = lsh_recall.recall_of(x, 4, 3, (2,), 5, np.random.default_rng(7))
    pattern = reformer.pattern(x, rotations=reformer.draw_rotations(2, 4, 4, np.random.default_rng(7)), chunk=3)
    assert found.met == [pattern.sum() / 380]
