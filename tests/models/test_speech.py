"""Networks that hear: gradients, padding that changes nothing, and an order of frames that does not."""

from functools import partial

import numpy as np
import pytest

from linattn_ref.attention import linear, softmax
from linattn_ref.gradcheck import check_directions
from linattn_ref.gradcheck.inputs import float_arrays
from linattn_ref.kernels import reference
from linattn_ref.models import speech, speech_lstm
from linattn_ref.nn import affine, layer_norm, mechanism, positions

FRAMES = np.random.default_rng(0).standard_normal((2, 6, 3))
LENGTHS = np.array([6, 4])


def networks():
    rng, sizes = np.random.default_rng(1), {"inputs": 3, "labels": 5, "layers": 2}
    for inside in (softmax, linear):
        model = speech.Model(mechanism.of(inside), heads=2, kernels=reference)

        def forward(frames, params, model=model, dropout=0.0, **more):
            return speech.forward(frames, params, model._replace(dropout=dropout), **more)

        yield inside.__name__, speech, speech.draw(rng, width=8, hidden=16, **sizes), forward
    yield "lstm", speech_lstm, speech_lstm.draw(rng, hidden=4, **sizes), speech_lstm.forward


everyone = pytest.mark.parametrize(("module", "params", "forward"), [pytest.param(*n[1:], id=n[0]) for n in networks()])


@everyone
def test_gradients(module, params, forward):
    def padded(frames, params):
        return forward(frames, params, lengths=LENGTHS)

    check_directions(padded, module.backward, FRAMES, params, rng=0, step=1e-6, directions=2).assert_ok()


@everyone
def test_gradients_with_dropout(module, params, forward):
    """The same numbers are left out each time; without a generator none are."""

    def dropping(frames, params):
        return forward(frames, params, dropout=0.3, rng=np.random.default_rng(5), lengths=LENGTHS)

    check_directions(dropping, module.backward, FRAMES, params, rng=0, step=1e-6, directions=2).assert_ok()
    plain = forward(FRAMES, params, lengths=LENGTHS)[0]
    assert not np.allclose(dropping(FRAMES, params)[0], plain)
    np.testing.assert_array_equal(forward(FRAMES, params, lengths=LENGTHS, dropout=0.3)[0], plain)


def test_a_network_without_blocks_is_its_formulas():
    _, _, params, forward = next(networks())
    x = FRAMES @ params.stem.w + params.stem.b + positions.sinusoidal(6, 8)  # (1)
    expected, _ = affine.forward(layer_norm.forward(x, params.norm)[0], params.head)  # (3)
    np.testing.assert_allclose(forward(FRAMES, params._replace(blocks=()))[0], expected, rtol=1e-12)


@everyone
def test_frames_have_places(module, params, forward):
    """Attention alone would give frames in reverse the same scores in reverse."""
    scores, reverse = (forward(frames, params)[0] for frames in (FRAMES, FRAMES[:, ::-1]))
    assert not np.allclose(reverse[:, ::-1], scores)


@everyone
def test_padded_is_truncated(module, params, forward):
    """Nobody hears what pads, be it NaN, and its scores have no share in a loss."""
    results = []
    for pad in (None, 7.0, np.nan):
        frames, lengths = FRAMES[1:, :4], None
        if pad is not None:
            frames, lengths = np.pad(frames, [(0, 0), (0, 2), (0, 0)], constant_values=pad), LENGTHS[1:]
        scores, saved = forward(frames, params, lengths=lengths)
        d_scores = np.where((np.arange(frames.shape[1]) < 4)[:, None], scores, 0)
        grads = module.backward(d_scores, saved)
        assert not grads.frames[:, 4:].any()
        results.append((scores[:, :4], grads.frames[:, :4], grads.params))
    alone, *padded = ([*float_arrays("", result)] for result in results)
    for each in padded:
        for (where, short), (_, long) in zip(alone, each, strict=True):
            np.testing.assert_allclose(long, short, rtol=1e-9, atol=1e-12, err_msg=where)


@pytest.mark.parametrize("layers", [0, -3, 2.0])
def test_as_many_layers_as_were_asked_for(layers):
    sizes = {"inputs": 3, "labels": 5, "hidden": 4, "layers": layers}
    for draw in (speech_lstm.draw, partial(speech.draw, width=8)):
        with pytest.raises(ValueError, match=f"layers: expected an integer of at least 1, got {layers}"):
            draw(np.random.default_rng(0), **sizes)


@everyone
def test_what_is_no_sound(module, params, forward):
    with pytest.raises(ValueError, match=r"params\.(stem|ahead)\.w: expected shape"):
        forward(FRAMES[..., :2], params)
    with pytest.raises(ValueError, match="frames: every axis needs at least one entry"):
        forward(FRAMES[:, :0], params)
    with pytest.raises(ValueError, match="lengths: expected numbers from 0 to 6"):
        forward(FRAMES, params, lengths=np.array([7, 1]))
    with pytest.raises(ValueError, match=r"dropout: expected a probability of at least 0 and below 1, got 3\.0"):
        forward(FRAMES, params, dropout=3.0)
