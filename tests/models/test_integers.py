"""Tokens, types, chosen places and lengths of any integer type: the numbers are those of int64."""

import numpy as np
import pytest

from linattn_ref.attention import linear, softmax
from linattn_ref.models import causal, classifier, encoder, masked_tokens, speech, speech_lstm
from linattn_ref.nested import leaves
from linattn_ref.nn import mechanism

V = 300  # more than a byte holds
TOKENS = np.array([[1, 2, 100, 7], [4, 0, 3, 3]])
FRAMES = np.random.default_rng(0).standard_normal((2, 150, 3))
LENGTHS = np.array([120, 3])  # more than half of what a byte holds
SIZES = {"tokens": V, "places": 12, "width": 8, "hidden": 16, "layers": 1}
HEARS = {"inputs": 3, "labels": 5, "layers": 1}


def both(module, *args, **options):
    out, saved = module.forward(*args, **options)
    return out, module.backward(out, saved).params


def of_causal(dtype):
    tokens, rng = TOKENS.astype(dtype), np.random.default_rng(1)
    params, model = causal.draw(rng, **SIZES), causal.Model(mechanism.of(linear, causal=True), heads=2)
    start = causal.init_state(len(tokens), params, model)
    read = causal.read(tokens[:, :3], params, start, model)
    return both(causal, tokens, params, model), causal.step(tokens[:, 3], params, read, model)


def of_encoder(dtype):
    tokens, types, chosen = (x.astype(dtype) for x in (TOKENS, TOKENS % 2, np.array([0, 3, 7])))
    params, model = encoder.draw(np.random.default_rng(1), types=2, **SIZES), encoder.Model(mechanism.of(softmax), 2)
    head, classes = (
        masked_tokens.draw(params, np.random.default_rng(2)),
        classifier.draw(params, 3, np.random.default_rng(3)),
    )
    return (
        both(encoder, tokens, params, model, types=types),
        both(masked_tokens, tokens, head, model, types=types, chosen=chosen),
        both(classifier, tokens, classes, model, types=types),
    )


def of_speech(dtype):
    rng, model = np.random.default_rng(1), speech.Model(mechanism.of(softmax), heads=2)
    params, cells = speech.draw(rng, width=8, hidden=16, **HEARS), speech_lstm.draw(rng, hidden=4, **HEARS)
    lengths = LENGTHS.astype(dtype)
    return both(speech, FRAMES, params, model, lengths=lengths), both(speech_lstm, FRAMES, cells, lengths=lengths)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.uint64])
@pytest.mark.parametrize("run", [of_causal, of_encoder, of_speech])
def test_the_type_of_integers_changes_no_bit(run, dtype):
    given, expected = (list(leaves(run(each), strict=False)) for each in (dtype, np.int64))
    assert len(given) > 10
    for (name, x), (_, y) in zip(given, expected, strict=True):
        np.testing.assert_array_equal(x, y, err_msg=name)
