"""What `config.json` may say, and what is refused."""

import json

import pytest

from linattn_ref.models.bert.config import parameter_shapes, parse_config

BASE = {
    "model_type": "bert",
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}
# As roberta-base has them.
ROBERTA = {"model_type": "roberta", "max_position_embeddings": 514, "vocab_size": 50265, "type_vocab_size": 1}


def parse(**changes):
    return parse_config(json.dumps(BASE | changes))


def test_sizes():
    config = parse()
    assert (config.layers, config.heads, config.width, config.head_width) == (12, 12, 768, 64)
    assert (config.positions, config.first_position, config.max_tokens) == (512, 0, 512)


def test_what_older_files_leave_out_is_as_transformers_has_it():
    config = parse()
    assert (config.activation, config.layer_norm_eps, config.initializer_range) == ("gelu", 1e-12, 0.02)
    assert parse(**ROBERTA).first_position == 2


@pytest.mark.parametrize("model_type", ["roberta", "xlm-roberta", "camembert"])
def test_robertas_514_positions_are_512_tokens(model_type):
    config = parse(**ROBERTA | {"model_type": model_type, "pad_token_id": 1})
    assert (config.positions, config.first_position, config.max_tokens) == (514, 2, 512)


@pytest.mark.parametrize(("changes", "millions"), [({}, 108.9), (ROBERTA, 124.1)], ids=["bert-base", "roberta-base"])
def test_number_of_parameters(changes, millions):
    """The published 110M and 125M count the pooler too, 0.59M here."""
    count = 0
    for shape in parameter_shapes(parse(**changes)).values():
        count += shape[0] * (shape[1] if len(shape) == 2 else 1)
    assert round(count / 1e6, 1) == millions


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type must be one of bert, roberta.*got 'gpt2'"),
        ({"model_type": None}, "model_type must be one of"),
        ({"is_decoder": True}, "is_decoder is true"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type must be 'absolute', got 'relative_key'"),
        ({"hidden_act": "silu"}, "hidden_act must be one of gelu.*got 'silu'"),
        ({"hidden_act": ["gelu"]}, "hidden_act must be one of gelu"),
        ({"hidden_size": 770}, "hidden_size must be a multiple of num_attention_heads, got 770 and 12"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a whole number, at least 1; got 0"),
        ({"vocab_size": "many"}, "vocab_size must be a whole number, at least 1; got 'many'"),
        ({"vocab_size": True}, "vocab_size must be"),
        ({"intermediate_size": 3072.0}, "intermediate_size must be"),
        ({"max_position_embeddings": None}, "max_position_embeddings must be"),
        ({"layer_norm_eps": 0}, "layer_norm_eps must be a number above 0, got 0"),
        ({"layer_norm_eps": 10**400}, "layer_norm_eps must be a number above 0, got 1000"),
        ({"initializer_range": "0.02"}, "initializer_range must be a number above 0"),
        ({"model_type": "roberta", "pad_token_id": 511}, "max_position_embeddings must be more than 512"),
        ({"model_type": "roberta", "pad_token_id": -1}, "pad_token_id must be a whole number, at least 0"),
    ],
)
def test_what_would_go_wrong_is_refused(changes, message):
    with pytest.raises(ValueError, match=rf"config\.json: {message}"):
        parse(**changes)


@pytest.mark.parametrize("name", [name for name in BASE if name != "model_type"])
def test_a_missing_size_is_named(name):
    with pytest.raises(ValueError, match=f"{name} must be"):
        parse_config(json.dumps({key: value for key, value in BASE.items() if key != name}))


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_no_configuration_at_all(text):
    with pytest.raises(ValueError, match=r"config\.json: "):
        parse_config(text)
