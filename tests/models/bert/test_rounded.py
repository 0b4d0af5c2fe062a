"""Weights as small whole numbers: how far off they are, and what that does to the spectrum of attention."""

import io

import numpy as np

from linattn_ref.models import bert
from linattn_ref.models.bert import rounded
from linattn_ref.models.bert.config import Config
from linattn_ref.models.bert.weights import ANCHOR
from linattn_ref.theory.spectrum import cumulative_share, singular_values

PIECES = ["[PAD]", "[UNK]", "東", "##a"]
# Weights of 0.1 make scores of some units: attention is uneven, and does not yet hang on the last digit.
CONFIG = Config("bert", 3, 4, 128, 256, 60, 40, 0, 2, "gelu", 1e-12, 0.1)


def packed_and_unpacked(model):
    content = rounded.pack(model, PIECES)
    assert content == rounded.pack(model, PIECES)
    return rounded.unpack(io.BytesIO(content))


def test_a_weight_is_off_by_half_a_step_of_its_group(checkpoint):
    model = bert.load(checkpoint.folder)
    back, pieces = packed_and_unpacked(model)
    assert pieces == PIECES
    assert (back.config, back.sha256, back.tokenizer) == (model.config, model.sha256, None)
    assert list(back.parameters) == list(model.parameters)
    for name, weights in model.parameters.items():
        found = back.parameters[name]
        assert found.dtype == np.float32
        if weights.ndim == 1:
            np.testing.assert_array_equal(found, weights)
            continue
        groups = np.abs(weights).reshape(*weights.shape[:-1], -1, 4)  # 12 and 20 in groups of 4
        step = groups.max(axis=-1) / (31 if name == ANCHOR else 127)
        off = np.abs(found - weights).reshape(groups.shape).max(axis=-1)
        assert (off <= 0.51 * step).all()  # a factor is rounded too, to 11 bits
        assert (off > 0).mean() > 0.9


def test_zeros_and_tiny_weights_stay_what_they_are(bert_checkpoint):
    model = bert.load(bert_checkpoint.folder)
    for name, value in (
        ("embeddings.position_embeddings.weight", 0),
        ("embeddings.token_type_embeddings.weight", 1e-9),
    ):
        model.parameters[name][...] = value
    back, _ = packed_and_unpacked(model)
    for name in ("position", "token_type"):
        np.testing.assert_allclose(back.parameters[f"embeddings.{name}_embeddings.weight"], 0, atol=1e-6)


def test_rounded_weights_leave_the_spectrum_as_it_is():
    """The curves of all heads move by 1e-4 and more, and by less than a hundredth."""
    model = bert.untrained(CONFIG, np.random.default_rng(0))
    back, _ = packed_and_unpacked(model)
    tokens = np.random.default_rng(1).integers(0, CONFIG.vocabulary, 40)
    exact, close = (
        np.stack([cumulative_share(singular_values(layer.p)) for layer in bert.layers(each, tokens)])
        for each in (model, back)
    )
    off = np.abs(exact - close).max(axis=-1)  # (T, H)
    assert off.min() > 1e-4
    assert off.max() < 0.01
