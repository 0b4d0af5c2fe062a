"""The forward pass against transformers' own, an independent implementation (extra: peers)."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra: peers")
pytest.importorskip("transformers", reason="needs the extra: peers")
import tokenizers
import torch
import transformers

from linattn_ref.data.fetch import MODEL, FetchError, open_content
from linattn_ref.models import bert

SIZES = {
    "vocab_size": 60,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "max_position_embeddings": 40,
}


def save_random(folder, network):
    """Draw all parameters, biases and gains too, and save: far from the initial values, where attention is uneven."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0, 0.4, generator=generator)
    network.save_pretrained(folder)
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, "[UNK]")).save(str(folder / "tokenizer.json"))


def assert_agrees(folder, model, tokens):
    """Every layer's probabilities to 1e-5 and output to 2e-5: about twice what float32 is off on a real model.

    The peer runs in double precision, so that the rounding is ours alone (its own float32 pass is off by as much).
    """
    peer = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval().double()
    with torch.no_grad():
        theirs = peer(torch.tensor(tokens)[None], output_attentions=True, output_hidden_states=True)
    ours = list(bert.layers(model, tokens))
    assert len(ours) == len(theirs.attentions) == len(theirs.hidden_states) - 1
    for layer, attention, hidden in zip(ours, theirs.attentions, theirs.hidden_states[1:], strict=True):
        np.testing.assert_allclose(layer.p, attention[0].numpy(), rtol=0, atol=1e-5)
        np.testing.assert_allclose(layer.hidden, hidden[0].numpy(), rtol=0, atol=2e-5)
    np.testing.assert_array_equal(bert.encode(model, tokens), ours[-1].hidden)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"])
@pytest.mark.parametrize(
    ("configuration", "network"),
    [
        ("BertConfig", "BertModel"),
        ("BertConfig", "BertForMaskedLM"),  # names begin with "bert."
        ("RobertaConfig", "RobertaModel"),
        ("RobertaConfig", "RobertaForMaskedLM"),  # names begin with "roberta."
        ("XLMRobertaConfig", "XLMRobertaModel"),
    ],
)
def test_a_random_network(tmp_path, configuration, network, activation):
    config = getattr(transformers, configuration)(**SIZES, hidden_act=activation)
    save_random(tmp_path, getattr(transformers, network)(config))
    model = bert.load(tmp_path)
    # 3 to 59: no token is padding, which RoBERTa would give no position.
    tokens = np.random.default_rng(0).integers(3, SIZES["vocab_size"], model.config.max_tokens)
    # The attention is far from even, 1/40, or the comparison would say little.
    assert max(layer.p.max() for layer in bert.layers(model, tokens)) > 0.25
    assert_agrees(tmp_path, model, tokens)


@pytest.mark.network
@pytest.mark.parametrize("length", [7, 512])
def test_the_pretrained_model(tmp_path, length):
    try:
        content = open_content(MODEL)
    except FetchError as error:
        pytest.skip(str(error))
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((content / name).read_bytes())
    tokens = np.random.default_rng(0).integers(1000, 30000, length)
    assert_agrees(tmp_path, bert.load(content), tokens)
