"""Decoding beside the sum over all paths; a share of wrong labels beside a few that are plain to see."""

import numpy as np
import pytest

from linattn_ref.nn import ctc
from linattn_ref.nn.ctc_decoding import error_rate, greedy, prefix_beam

SCORES = 2 * np.random.default_rng(0).standard_normal((6, 5, 3))


def over_all_paths(scores):
    """The probability of every labelling by the loss, which `test_ctc.py` checks."""
    from itertools import product

    labels = [each for n in range(len(scores) + 1) for each in product(range(1, scores.shape[-1]), repeat=n)]
    losses = [max(len(each), 1) * ctc.forward(scores, np.array(each, int))[0] for each in labels]
    return {each: np.exp(-loss) for each, loss in zip(labels, losses, strict=True)}


def test_a_wide_beam_is_exact():
    """All labels in order, each with its probability."""
    for scores, found in zip(SCORES[:2], prefix_beam(SCORES[:2], width=1000), strict=True):
        expected = {labels: p for labels, p in over_all_paths(scores).items() if p > 0}
        assert {tuple(each.labels) for each in found} == set(expected)
        for each in found:
            assert np.exp(each.log_probability) == pytest.approx(expected[tuple(each.labels)], rel=1e-12)
        assert [each.log_probability for each in found] == sorted(
            (each.log_probability for each in found), reverse=True
        )


def test_a_narrow_beam_claims_no_more_than_there_is():
    for scores, found in zip(SCORES, prefix_beam(SCORES, width=2), strict=True):
        exact = over_all_paths(scores)
        assert 1 <= len(found) <= 2
        assert all(np.exp(each.log_probability) <= exact[tuple(each.labels)] * (1 + 1e-12) for each in found)


def test_greedy_is_the_likeliest_path():
    scores = np.full((8, 3), -1.0)
    scores[np.arange(8), [0, 1, 1, 0, 1, 2, 2, 0]] = 1
    assert greedy(scores) == [[1, 1, 2]]
    assert greedy(np.stack([scores, scores]), frames=np.array([3, 0])) == [[1], []]


def test_frames_behind_the_last_are_not_heard():
    frames = np.array([3, 5, 0, 1, 4, 5])
    for b, found in enumerate(prefix_beam(SCORES, frames=frames)):
        alone = prefix_beam(SCORES[b, : frames[b]])[0] if frames[b] else [([], 0.0)]
        assert found == alone


def test_no_frames_say_nothing():
    for leading, sequences in (((), 1), ((2,), 2)):
        scores = np.zeros((*leading, 0, 3))
        assert greedy(scores) == [[]] * sequences
        assert [[found.labels for found in each] for each in prefix_beam(scores)] == [[[]]] * sequences


def test_error_rate():
    pytest.importorskip("rapidfuzz", reason="rapidfuzz is not installed (extra speech)")
    assert error_rate([[1, 2, 3], []], [[1, 2, 3], [4]]) == 0.25  # one left out
    assert error_rate([[1, 3, 3, 5]], [[1, 2, 3]]) == 2 / 3  # one replaced, one too many
    assert error_rate([[256], [1]], [[1], [1]]) == 0.5  # labels, not their bytes
    assert error_rate([[7, 7, 7]], [[1]]) == 3
    with pytest.raises(ValueError, match="found: expected 2 sequences"):
        error_rate([[1]], [[1], [2]])
    with pytest.raises(ValueError, match="meant: there is no label"):
        error_rate([[1]], [[]])
    with pytest.raises(ValueError, match="width"):
        prefix_beam(SCORES, width=0)


@pytest.mark.parametrize("decode", [greedy, prefix_beam])
def test_scores_that_are_no_numbers_are_refused_where_they_are_heard(decode):
    for row in ([np.nan, 0, 0, 0], [np.inf, 0, 0, 0], [-np.inf] * 4):
        scores = np.zeros((2, 3, 4))
        scores[1, 2] = row
        with pytest.raises(ValueError, match=f"scores: expected a finite number .* got {row[0]} in sequence 1"):
            decode(scores)
        assert len(decode(scores, frames=np.array([3, 2]))) == 2
    scores[1, 2, 1] = 0  # a symbol that cannot be
    assert len(decode(scores)) == 2
