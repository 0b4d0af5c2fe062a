"""What ``config.json`` says about a BERT-family encoder, and the tensors that follow from it."""

import json
import sys
from types import ModuleType
from typing import Any, NamedTuple

from linattn_ref.nn import gelu, gelu_tanh, relu

__all__ = ["ACTIVATIONS", "Config", "parameter_shapes", "parse_config", "pooler_shapes"]

# By the names that config.json's "hidden_act" uses.
ACTIVATIONS: dict[str, ModuleType] = {
    "gelu": gelu,
    "gelu_python": gelu,
    "gelu_accurate": gelu_tanh,
    "gelu_fast": gelu_tanh,  # its constant has ten digits: the same number in float32
    "gelu_new": gelu_tanh,
    "gelu_python_tanh": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": relu,
}

ROBERTA_TYPES = ("roberta", "xlm-roberta", "camembert")  # one forward pass, under three names


class Config(NamedTuple):
    """The sizes and choices of an encoder. Names in brackets are those of ``config.json``."""

    model_type: str
    layers: int  # [num_hidden_layers]
    heads: int  # H [num_attention_heads]
    width: int  # E [hidden_size]
    inner_width: int  # of the feed-forward layer [intermediate_size]
    vocabulary: int  # [vocab_size]
    positions: int  # rows of the table of positions [max_position_embeddings]
    first_position: int  # the row of the first token: 0 in BERT, pad_token_id + 1 in RoBERTa
    token_types: int  # [type_vocab_size]
    activation: str  # a key of ACTIVATIONS [hidden_act]
    layer_norm_eps: float
    initializer_range: float  # standard deviation of the weights before training

    @property
    def head_width(self) -> int:
        """``D = E / H``."""
        return self.width // self.heads

    @property
    def max_tokens(self) -> int:
        """The longest sequence, special tokens included: RoBERTa's 514 positions mean 512 tokens."""
        return self.positions - self.first_position


def parse_config(content: str | bytes) -> Config:
    """Read the contents of a ``config.json``.

    Raises
    ------
    ValueError
        No valid JSON, a field missing or of the wrong kind, or a model that this forward pass would get wrong: another
        family than BERT or RoBERTa, a decoder, relative positions, an unknown activation.
    """
    try:
        fields = json.loads(content)
    except ValueError as error:
        raise ValueError(f"config.json: not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"config.json: expected an object, got {type(fields).__name__}")
    _check_family(fields)
    is_roberta = fields["model_type"] in ROBERTA_TYPES
    config = Config(
        model_type=fields["model_type"],
        layers=_size(fields, "num_hidden_layers"),
        heads=_size(fields, "num_attention_heads"),
        width=_size(fields, "hidden_size"),
        inner_width=_size(fields, "intermediate_size"),
        vocabulary=_size(fields, "vocab_size"),
        positions=_size(fields, "max_position_embeddings"),
        first_position=_size(fields, "pad_token_id", default=1, least=0) + 1 if is_roberta else 0,
        token_types=_size(fields, "type_vocab_size"),
        activation=fields.get("hidden_act", "gelu"),
        layer_norm_eps=_positive(fields, "layer_norm_eps", default=1e-12),
        initializer_range=_positive(fields, "initializer_range", default=0.02),
    )
    if config.width % config.heads:
        raise ValueError(
            f"config.json: hidden_size must be a multiple of num_attention_heads, got {config.width} and {config.heads}"
        )
    if config.max_tokens < 1:
        raise ValueError(
            f"config.json: max_position_embeddings must be more than {config.first_position} in a RoBERTa whose "
            f"pad_token_id is {config.first_position - 1}, got {config.positions}"
        )
    return config


def parameter_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that the forward pass reads.

    The names are those of a checkpoint of a bare ``BertModel``. A weight is stored as ``(to, from)``: the layer
    computes ``x W^T + b``.
    """
    width, inner = config.width, config.inner_width
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config.vocabulary, width),
        "embeddings.position_embeddings.weight": (config.positions, width),
        "embeddings.token_type_embeddings.weight": (config.token_types, width),
        "embeddings.LayerNorm.weight": (width,),
        "embeddings.LayerNorm.bias": (width,),
    }
    dense = {
        "attention.self.query": (width, width),
        "attention.self.key": (width, width),
        "attention.self.value": (width, width),
        "attention.output.dense": (width, width),
        "intermediate.dense": (inner, width),
        "output.dense": (width, inner),
    }
    for index in range(config.layers):
        layer = f"encoder.layer.{index}"
        for name, shape in dense.items():
            shapes[f"{layer}.{name}.weight"] = shape
            shapes[f"{layer}.{name}.bias"] = shape[:1]
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"{layer}.{name}.weight"] = (width,)
            shapes[f"{layer}.{name}.bias"] = (width,)
    return shapes


def pooler_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """The same of what a classifier reads of the first row."""
    return {"pooler.dense.weight": (config.width, config.width), "pooler.dense.bias": (config.width,)}


def _check_family(fields: dict[str, Any]) -> None:
    known = ("bert", *ROBERTA_TYPES)
    if fields.get("model_type") not in known:
        raise ValueError(f"config.json: model_type must be one of {', '.join(known)}, got {fields.get('model_type')!r}")
    if fields.get("is_decoder", False):
        raise ValueError("config.json: is_decoder is true, but only encoders (every token sees every token) are read")
    if fields.get("position_embedding_type", "absolute") != "absolute":
        raise ValueError(
            f"config.json: position_embedding_type must be 'absolute', got {fields['position_embedding_type']!r}"
        )
    if fields.get("hidden_act", "gelu") not in list(ACTIVATIONS):
        raise ValueError(
            f"config.json: hidden_act must be one of {', '.join(ACTIVATIONS)}, got {fields['hidden_act']!r}"
        )


def _size(fields: dict[str, Any], name: str, default: int | None = None, least: int = 1) -> int:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"config.json: {name} must be a whole number, at least {least}; got {value!r}")
    return value


def _positive(fields: dict[str, Any], name: str, default: float) -> float:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= sys.float_info.max:
        raise ValueError(f"config.json: {name} must be a number above 0, got {value!r}")
    return float(value)
