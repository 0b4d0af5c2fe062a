"""CTC beside its definition, a sum over all paths: which labels are possible, padding, symbols that cannot be."""

from itertools import product

import numba
import numpy as np
import pytest
from cases import each_compiled_dtype

from linattn_ref.kernels import jit, reference
from linattn_ref.kernels.jit import loops
from linattn_ref.nn import ctc

T, V = 4, 3
SCORES = np.random.default_rng(0).standard_normal((T, V))
rooms = pytest.mark.parametrize("room", [reference, jit], ids=["reference", "jit"])


def said_by(path):
    """The paper's map B: a run once, then no blanks."""
    return tuple(symbol for i, symbol in enumerate(path) if symbol and (i == 0 or path[i - 1] != symbol))


def over_all_paths(scores):
    """The probability of every labelling that some path says."""
    y = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    of_labels = {}
    for path in product(range(scores.shape[-1]), repeat=len(scores)):
        labels = said_by(path)
        of_labels[labels] = of_labels.get(labels, 0) + np.prod(y[np.arange(len(scores)), path])
    return of_labels


def all_labels(most):
    return [labels for n in range(most + 1) for labels in product(range(1, V), repeat=n)]


def batch_of(labels):
    """Each of them in a row, with their lengths; what lies behind is no label at all."""
    targets = np.full((len(labels), max(map(len, labels))), -7)
    for row, each in zip(targets, labels, strict=True):
        row[: len(each)] = each
    return targets, np.array([len(each) for each in labels])


def run(scores, targets, **options):
    loss, saved = ctc.forward(scores, targets, **options)
    return loss, ctc.backward(1.0, saved).scores


def each_alone(scores, targets, frames, lengths, share, **options):
    """The loss of every sequence, not divided by its labels, and the gradient of the sum of their shares."""
    losses, d_scores = [], []
    for b in range(len(scores)):
        some = slice(b, b + 1)
        loss, saved = ctc.forward(scores[some], targets[some], frames=frames[some], lengths=lengths[some], **options)
        losses.append(loss * max(lengths[b], 1))
        d_scores.append(ctc.backward(float(share[b]) * max(lengths[b], 1), saved).scores)
    return np.array(losses), np.concatenate(d_scores)


@rooms
def test_every_labelling_has_the_probability_of_its_paths(room):
    """Also none, repeated ones, and those that no path says: one more than there are frames, or a blank too few."""
    labels, expected = all_labels(T + 1), over_all_paths(SCORES)
    targets, lengths = batch_of(labels)
    scores = np.broadcast_to(SCORES, (len(labels), T, V))
    losses, _ = each_alone(scores, targets, np.full(len(labels), T), lengths, np.ones(len(labels)), kernels=room)
    np.testing.assert_allclose(np.exp(-losses), [expected.get(each, 0) for each in labels], rtol=1e-13)
    assert np.exp(-losses).sum() == pytest.approx(1, rel=1e-13)


@rooms
def test_what_pads_a_sequence_changes_nothing(room):
    rng = np.random.default_rng(1)
    scores, targets = rng.standard_normal((3, 6, V)), rng.integers(1, V, (3, 2))
    frames, lengths = np.array([6, 4, 5]), np.array([2, 0, 1])
    options = {"frames": frames, "lengths": lengths, "kernels": room}
    whole, d_whole = run(scores, targets, **options)
    alone = [
        run(s[:t], labels[:n], kernels=room) for s, labels, t, n in zip(scores, targets, frames, lengths, strict=True)
    ]
    assert whole == pytest.approx(np.mean([loss for loss, _ in alone]), rel=1e-14)
    scores[1, 4:], scores[2, 5:], targets[1], targets[2, 1:] = np.nan, np.inf, -1, 99
    padded, d_padded = run(scores, targets, **options)
    assert padded == whole
    np.testing.assert_array_equal(d_padded, d_whole)
    for b, (_, d_alone) in enumerate(alone):
        np.testing.assert_allclose(d_whole[b, : frames[b]], d_alone / 3, rtol=1e-13, atol=1e-16)
        assert np.all(d_whole[b, frames[b] :] == 0)


@rooms
@pytest.mark.parametrize(("labels", "loss"), [(0, 0.0), (1, np.inf)])
def test_no_frames_say_no_labels(labels, loss, room):
    for leading in ((), (2,)):
        targets = np.ones((*leading, labels), int)
        found, saved = ctc.forward(np.zeros((*leading, 0, 3)), targets, kernels=room)
        assert found == loss
        assert ctc.backward(1.0, saved).scores.shape == (*leading, 0, 3)


@rooms
def test_a_constant_added_to_all_scores_changes_nothing(room):
    """Also where 0 is far above them: neither a frame nor the states end where a vector of the processor does."""
    scores = np.round(SCORES * 1024) / 1024  # added to 2^40 without rounding
    loss, d_scores = run(scores, np.array([1, 2]), kernels=room)
    for constant in (-1000.0, 1000.0, 2.0**40):
        loss_there, d_scores_there = run(scores + constant, np.array([1, 2]), kernels=room)
        assert loss_there == pytest.approx(loss, rel=1e-12)
        np.testing.assert_allclose(d_scores_there, d_scores, rtol=0, atol=1e-12)


@rooms
def test_labels_that_no_path_says(room):
    scores, targets = np.stack([SCORES, SCORES]), np.array([[1, 2], [1, 1]])
    frames = np.array([2, 2])  # 1 1 needs a blank between
    loss, d_scores = run(scores, targets, frames=frames, kernels=room)
    assert loss == np.inf
    assert np.all(d_scores[1] == 0)
    first, d_first = run(scores[:1, :2], targets[:1], kernels=room)
    loss, d_scores = run(scores, targets, frames=frames, infinite_to_zero=True, kernels=room)
    assert loss == first / 2
    np.testing.assert_allclose(d_scores[0, :2], d_first[0] / 2, rtol=1e-14)


def test_no_frames_say_no_labels_and_nothing_else():
    scores, targets = np.stack([SCORES, SCORES]), np.array([[1], [1]])
    none = np.zeros(2, int)
    assert run(scores, targets, frames=none, lengths=none)[0] == 0
    assert run(scores, targets, frames=none)[0] == np.inf


@rooms
def test_symbols_that_cannot_be(room):
    """A score of -inf is a probability of 0; a score of NaN shows, in its frame."""
    scores, targets = SCORES.copy(), np.array([1, 2])
    scores[0, 1] = scores[2, 0] = -np.inf
    loss, d_scores = run(scores, targets, kernels=room)
    assert np.exp(-2 * loss) == pytest.approx(over_all_paths(scores)[1, 2], rel=1e-13)
    assert np.all(np.isfinite(d_scores))
    np.testing.assert_allclose(d_scores, run(scores, targets)[1], rtol=0, atol=1e-15)
    scores[0, 0] = -np.inf  # now the first frame says 2
    assert run(scores, targets, kernels=room)[0] == np.inf
    for frame in range(T):
        scores = SCORES.copy()
        scores[frame, 1] = np.nan
        with np.errstate(invalid="ignore"):
            loss, d_scores = run(scores, targets, kernels=room)
        assert np.isnan(loss)
        assert np.isnan(d_scores[frame]).all()


def test_shares_of_a_frame_sum_to_1_in_float32():
    """Also where the probability of the labels is e^-900, whose logarithm float32 rounds at 6e-5: (8) sums to 0."""
    rng = np.random.default_rng(0)
    scores, targets = 3 * rng.standard_normal((1, 300, 10)).astype(np.float32), rng.integers(1, 10, (1, 30))
    _, d_scores = run(scores, targets)
    np.testing.assert_allclose(30 * d_scores.sum(axis=-1), 0, rtol=0, atol=32 * np.finfo(np.float32).eps)


def test_wrong_arguments_are_named():
    scores, labels = SCORES[None], np.array([[1, 2]])
    for error, options in {
        "targets: expected labels from 1 to 2 .0 is the blank., got 0 to 2": {"targets": np.array([[0, 2]])},
        "targets: expected labels from 1 to 2 .0 is the blank., got 1 to 3": {"targets": np.array([[1, 3]])},
        "targets: expected shape": {"targets": np.array([1, 2])},
        "targets: expected an array of integers, got float64": {"targets": np.ones((1, 2))},
        "frames: expected numbers from 0 to 4, got 5 to 5": {"frames": np.array([5])},
        "frames: expected shape .*= .1,., got .2,.": {"frames": np.array([2, 2])},
        "lengths: expected numbers from 0 to 2, got -1 to -1": {"lengths": np.array([-1])},
        "lengths: expected an array of integers, got int": {"lengths": 2},
        "kernels: expected a backend with the page 'ctc'": {"kernels": np},
    }.items():
        with pytest.raises((TypeError, ValueError), match=f"^{error}"):
            ctc.forward(**{"scores": scores, "targets": labels, **options})


# --- Compiled ---


def drawn(batch=6, frames=37, symbols=21, labels=12, scale=3.0):
    rng = np.random.default_rng(2)
    targets = rng.integers(1, symbols, (batch, labels))
    targets[0] = 3  # a blank between any two
    lengths, used = rng.integers(0, labels + 1, batch), rng.integers(frames - 9, frames + 1, batch)
    lengths[:3], used[:3] = (labels, 0, labels), (frames, frames, labels - 1)  # the third has too few frames
    return scale * rng.standard_normal((batch, frames, symbols)), targets, used, lengths, rng.random(batch)


@each_compiled_dtype
@pytest.mark.parametrize("scale", [1, 300])
def test_jit_is_the_reference(dtype, scale):
    scores, targets, frames, lengths, share = drawn(scale=scale)
    scores = scores.astype(dtype)
    losses, d_scores = loops.layers.ctc.forward(scores, targets, frames, lengths, share.astype(dtype))
    exact, d_exact = each_alone(scores.astype(float), targets, frames, lengths, share)
    assert losses.dtype == d_scores.dtype == dtype
    assert np.isposinf(losses[2])
    np.testing.assert_allclose(losses, exact, rtol=64 * np.finfo(dtype).eps)
    # A probability is off by as much as the scores it is made of, and these are a hundred times one or more.
    np.testing.assert_allclose(d_scores, d_exact, rtol=0, atol=64 * scale * np.finfo(dtype).eps)


@pytest.mark.slow
def test_hundreds_of_frames_in_float32():
    """Logarithms of probabilities reach the thousands there; the gradient keeps four digits all the same."""
    scores, targets, _, _, share = drawn(4, 800, 60, 100)
    arguments = targets, np.full(4, 800), np.array([100, 60, 40, 0])
    _, d_exact = loops.layers.ctc.forward(scores.astype(np.float32).astype(float), *arguments, share)
    _, d_scores = loops.layers.ctc.forward(scores.astype(np.float32), *arguments, share.astype(np.float32))
    np.testing.assert_allclose(d_scores, d_exact, rtol=0, atol=3e-4)


def test_jit_with_any_layout_and_threads():
    scores, *rest = drawn()
    losses, d_scores = loops.layers.ctc.forward(scores, *rest)
    scores.setflags(write=False)
    threads = numba.get_num_threads()
    try:
        for count in (1, threads):
            numba.set_num_threads(count)
            for layout in (scores, np.repeat(scores, 2, axis=-1)[..., ::2]):
                again = loops.layers.ctc.forward(layout, *rest)
                np.testing.assert_array_equal(again[0], losses)
                np.testing.assert_array_equal(again[1], d_scores)
    finally:
        numba.set_num_threads(threads)


@pytest.mark.parametrize("order", ["C", "F"])
def test_gradients_are_written_whatever_the_layout(order):
    rng = np.random.default_rng(0)
    scores, targets = rng.standard_normal((2, 3, 5, 4)), rng.integers(1, 4, (2, 3, 2))
    got = ctc.backward(1.0, ctc.forward(np.array(scores, order=order), targets)[1]).scores
    one_by_one = [ctc.backward(1.0, ctc.forward(*x)[1]).scores for x in zip(scores, targets, strict=True)]
    np.testing.assert_allclose(got, np.stack(one_by_one) / 2, rtol=1e-12)
