"""What a training pass leaves out: of the embedding once, of a layer twice (of an LSTM once), of a summary once."""

import numpy as np
import pytest

from linattn_ref.attention import softmax
from linattn_ref.models import causal, classifier, encoder, speech, speech_lstm
from linattn_ref.nn import dropout, mechanism, no_norm, post_norm, pre_norm

READ = np.random.default_rng(0).integers(5, size=(2, 6))
HEARD = np.random.default_rng(0).standard_normal((*READ.shape, 3))
WIDTH, LAYERS = 8, 3


def drawn_for(masks, p):
    """A generator's state after masks of these shapes were drawn."""
    rng = np.random.default_rng(5)
    for shape in masks:
        dropout.forward(np.ones(shape), p=p, rng=rng)
    return rng.bit_generator.state


dropping = pytest.mark.parametrize("p", [0.0, 0.3])


@dropping
@pytest.mark.parametrize(
    ("module", "block"),
    [(causal, pre_norm), (causal, post_norm), (causal, no_norm), (encoder, post_norm), (classifier, pre_norm)],
    ids=lambda module: module.__name__.rpartition(".")[2],
)
def test_every_layer_of_a_model_drops(module, block, p):
    inside = mechanism.of(softmax, **({"causal": True} if module is causal else {}))
    below = causal if module is causal else encoder
    sizes = {"tokens": 5, "places": 6, "width": WIDTH, "hidden": 16, "layers": LAYERS}
    params = below.draw(np.random.default_rng(1), **sizes, **({"block": block} if module is causal else {}))
    if module is classifier:
        params = classifier.draw(params, 3, np.random.default_rng(2))
    model = below.Model(inside, heads=2, dropout=p, block=block)
    rng = np.random.default_rng(5)
    module.forward(READ, params, model, rng=rng)
    masks = [(*READ.shape, WIDTH)] * (1 + 2 * LAYERS) + [(len(READ), WIDTH)] * (module is classifier)
    assert rng.bit_generator.state == drawn_for(masks, p)


@dropping
@pytest.mark.parametrize("module", [speech, speech_lstm], ids=["transformer", "lstm"])
def test_every_layer_of_what_hears_drops(module, p):
    sizes, rng = {"inputs": 3, "labels": 5, "layers": LAYERS}, np.random.default_rng(5)
    if module is speech:
        params = speech.draw(np.random.default_rng(1), width=WIDTH, hidden=16, **sizes)
        speech.forward(HEARD, params, speech.Model(mechanism.of(softmax), heads=2, dropout=p), rng=rng)
    else:
        params = speech_lstm.draw(np.random.default_rng(1), hidden=WIDTH // 2, **sizes)
        speech_lstm.forward(HEARD, params, dropout=p, rng=rng)
    layers = 1 + 2 * LAYERS if module is speech else LAYERS
    assert rng.bit_generator.state == drawn_for([(*READ.shape, WIDTH)] * layers, p)
