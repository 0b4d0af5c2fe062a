"""Cross-entropy: weights, targets that do not count, scores of any size."""

import numpy as np
import pytest

from linattn_ref.kernels import jit, reference
from linattn_ref.nn import cross_entropy
from linattn_ref.nn.cross_entropy import IGNORE

SCORES = np.random.default_rng(0).standard_normal((6, 3))
TARGETS = np.array([0, 1, 2, 0, 1, 2])
rooms = pytest.mark.parametrize("room", [reference, jit], ids=["reference", "jit"])


def test_an_ignored_target_is_one_that_is_not_there():
    """Whatever its scores are."""
    targets, scores = TARGETS.copy(), SCORES.copy()
    targets[2] = IGNORE
    scores[2] = -np.inf, 0, np.nan
    scores[2, 2] = 700
    kept = np.arange(6) != 2
    loss, saved = cross_entropy.forward(scores, targets)
    assert loss == pytest.approx(cross_entropy.forward(SCORES[kept], TARGETS[kept])[0], rel=1e-14)
    assert np.all(cross_entropy.backward(1.0, saved).scores[2] == 0)


def test_a_weight_of_two_is_a_target_twice():
    weight = np.array([1.0, 2, 0, 1, 1, 1])
    again = np.repeat(np.arange(6), weight.astype(int))
    loss, saved = cross_entropy.forward(SCORES, TARGETS, weight=weight)
    twice, saved_twice = cross_entropy.forward(SCORES[again], TARGETS[again])
    assert loss == pytest.approx(twice, rel=1e-14)
    d_twice = cross_entropy.backward(1.0, saved_twice).scores
    d_scores = cross_entropy.backward(1.0, saved).scores
    np.testing.assert_allclose(d_scores[1], d_twice[1] + d_twice[2], rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_of_any_size(dtype):
    """A constant added to a row changes nothing; a score far below the others costs its distance."""
    scores = np.array([[0, -1e4, 1e4]], dtype)
    loss, saved = cross_entropy.forward(scores, np.array([1]))
    assert loss == dtype(2e4)
    np.testing.assert_array_equal(cross_entropy.backward(dtype(1), saved).scores, [[0, -1, 1]])


@rooms
@pytest.mark.parametrize("constant", [-1000.0, 1000.0])
def test_a_constant_added_to_all_scores_changes_nothing(room, constant):
    """Also where 0 is far above or below them: a row ends before a vector of the processor does."""
    results = []
    for scores in (SCORES, SCORES + constant):
        loss, saved = cross_entropy.forward(scores, TARGETS, kernels=room)
        results.append((loss, cross_entropy.backward(1.0, saved).scores))
    (loss, d_scores), (loss_there, d_scores_there) = results
    assert loss_there == pytest.approx(loss, rel=1e-12)  # 1000 has three digits
    np.testing.assert_allclose(d_scores_there, d_scores, rtol=0, atol=1e-12)


@rooms
def test_smoothed_labels_are_the_mean_over_all_tokens(room):
    """A share of each target is every token's; a target that is ignored has none to spread."""
    targets, s = np.where(np.arange(6) == 2, IGNORE, TARGETS), 0.3
    options = {"weight": np.array([1.0, 2, 9, 0, 1, 1]), "kernels": room}
    loss, saved = cross_entropy.forward(SCORES, targets, label_smoothing=s, **options)
    d_scores, parts = cross_entropy.backward(2.0, saved).scores, []
    for t in (targets, *(np.where(targets == IGNORE, IGNORE, token) for token in range(3))):
        part, of_part = cross_entropy.forward(SCORES, t, **options)
        parts.append((part, cross_entropy.backward(2.0, of_part).scores))
    for got, (own, *others) in zip((loss, d_scores), zip(*parts, strict=True), strict=True):
        np.testing.assert_allclose(got, (1 - s) * own + s * sum(others) / 3, rtol=1e-13, atol=1e-15)
    for wrong in (-0.1, 1.1, np.nan, True):
        with pytest.raises(ValueError, match=r"^label_smoothing: expected a number from 0 to 1"):
            cross_entropy.forward(SCORES, targets, label_smoothing=wrong, **options)


def test_labels_smoothed_away():
    """Of which a token that cannot be is a part, as of all others."""
    scores = np.array([[0.0, -np.inf, 0.0]])
    assert [cross_entropy.forward(scores, np.array([1]), label_smoothing=s)[0] for s in (0.5, 1.0)] == [np.inf] * 2


def test_only_the_ratio_of_weights_counts():
    """Up to the largest numbers, whose sum would be infinite."""
    weight = np.array([1.0, 2, 0, 1, 1, 1])
    loss, saved = cross_entropy.forward(SCORES, TARGETS, weight=weight)
    large, saved_large = cross_entropy.forward(SCORES, TARGETS, weight=weight * 2.0**1022)
    assert large == loss
    np.testing.assert_array_equal(*(cross_entropy.backward(1.0, each).scores for each in (saved_large, saved)))


@pytest.mark.parametrize("wrong", [2.0, True, None, "no"], ids=repr)
def test_what_is_ignored_is_an_integer(wrong):
    assert cross_entropy.forward(SCORES, TARGETS, ignore=np.int8(1))[0] > 0
    with pytest.raises(TypeError, match=rf"^ignore: expected an integer, got {wrong!r}"):
        cross_entropy.forward(SCORES, TARGETS, ignore=wrong)


def test_what_has_no_mean_is_an_error():
    with pytest.raises(ValueError, match="targets: all are ignored"):
        cross_entropy.forward(SCORES, np.full(6, IGNORE))
    with pytest.raises(ValueError, match="targets: all are ignored or have weight 0"):
        cross_entropy.forward(SCORES, TARGETS, weight=np.zeros(6))
    with pytest.raises(ValueError, match="targets: expected numbers from 0 to 2, or -100"):
        cross_entropy.forward(SCORES, TARGETS + 1)
    for wrong in (-1.0, np.inf, np.nan):
        weight = np.where(TARGETS == 1, wrong, 1.0)
        with pytest.raises(ValueError, match=f"weight: expected finite numbers of at least 0, got {wrong}"):
            cross_entropy.forward(SCORES, TARGETS, weight=weight)
