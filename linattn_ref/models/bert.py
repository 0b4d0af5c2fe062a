"""The forward pass of BERT (Devlin et al. 2019) and RoBERTa (Liu et al. 2019), in plain NumPy, float32.

One sequence of tokens ``t_1 ... t_N`` goes in. A layer's ``W`` are its own; ``LayerNorm`` has a gain and a bias.

    X = LayerNorm(word[t_i] + position[i] + type[0])                (1)

then, layer by layer, with H heads side by side in Q, K and V,

    Q = X W_Q^T + b_Q,  K = X W_K^T + b_K,  V = X W_V^T + b_V       (2)
    P = softmax(Q K^T / sqrt(D))                                    (3)
    Y = LayerNorm(X + (P V) W_O^T + b_O)                            (4)
    X = LayerNorm(Y + gelu(Y W_1^T + b_1) W_2^T + b_2)              (5)

    LayerNorm(x) = gain * (x - mean(x)) / sqrt(var(x) + eps) + bias (6)

``P``, the context mapping matrix, is what the low-rank argument is about: :func:`layers` hands out every layer's.

References
----------
Devlin et al. (2019), "BERT: pre-training of deep bidirectional transformers for language understanding".
Liu et al. (2019), "RoBERTa: a robustly optimized BERT pretraining approach". The same network; its table of
positions starts at ``pad_token_id + 1``.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from linattn_ref.attention import layer_norm as norm
from linattn_ref.attention import softmax
from linattn_ref.attention.arguments import Array
from linattn_ref.models.activation import ACTIVATIONS
from linattn_ref.models.bert_config import Config
from linattn_ref.models.bert_weights import Model, Parameters, load, untrained

__all__ = ["Config", "Layer", "Model", "embed", "encode", "layers", "load", "untrained"]


class Layer(NamedTuple):
    """What one layer computed."""

    q: Array  # (H, N, D)
    k: Array  # (H, N, D)
    v: Array  # (H, N, D)
    p: Array  # (H, N, N), rows sum to 1
    hidden: Array  # (N, E), the layer's output


def layers(model: Model, tokens: ArrayLike) -> Iterator[Layer]:
    """Run the encoder over one sequence, and hand out each layer as it is done.

    Parameters
    ----------
    model : Model
    tokens : array_like of int ``(N,)``
        Special tokens included; no padding. At most ``model.config.max_tokens``.

    Returns
    -------
    iterator of Layer
        First layer first. Only one layer is in memory at a time, unless the caller keeps them.

    Raises
    ------
    TypeError, ValueError
        As :func:`embed`, at once and not at the first layer.
    """
    return _layers(model, embed(model, tokens))


def _layers(model: Model, hidden: Array) -> Iterator[Layer]:
    config = model.config
    activation = ACTIVATIONS[config.activation]
    for index in range(config.layers):
        weights = _under(model.parameters, f"encoder.layer.{index}.")
        q = split_heads(linear(hidden, weights, "attention.self.query"), config.heads)  # (2)  (H, N, D)
        k = split_heads(linear(hidden, weights, "attention.self.key"), config.heads)
        v = split_heads(linear(hidden, weights, "attention.self.value"), config.heads)
        p = softmax.matrix(q, k)  # (3)  (H, N, N)
        attended = linear(merge_heads(p @ v), weights, "attention.output.dense")  # (N, E)
        y = layer_norm(hidden + attended, weights, "attention.output.LayerNorm", config.layer_norm_eps)  # (4)
        inner = activation(linear(y, weights, "intermediate.dense"))  # (N, inner width)
        outer = linear(inner, weights, "output.dense")  # (N, E)
        hidden = layer_norm(y + outer, weights, "output.LayerNorm", config.layer_norm_eps)  # (5)
        yield Layer(q, k, v, p, hidden)


def encode(model: Model, tokens: ArrayLike) -> Array:
    """The last layer's output ``(N, E)`` for one sequence of ``tokens``; see :func:`layers`."""
    hidden = embed(model, tokens)
    for layer in _layers(model, hidden):
        hidden = layer.hidden
    return hidden


def embed(model: Model, tokens: ArrayLike) -> Array:
    """Equation (1): the input ``(N, E)`` of the first layer.

    Raises
    ------
    TypeError
        Tokens that are no integers.
    ValueError
        Not one sequence of at least one token, more tokens than the model has positions, or a token that is not in
        its vocabulary.
    """
    config = model.config
    ids = check_tokens(tokens, config)
    weights = _under(model.parameters, "embeddings.")
    positions = config.first_position + np.arange(ids.size)
    x = (
        weights["word_embeddings.weight"][ids]  # (N, E)
        + weights["position_embeddings.weight"][positions]
        + weights["token_type_embeddings.weight"][0]
    )
    return layer_norm(x, weights, "LayerNorm", config.layer_norm_eps)  # (1)


def linear(x: Array, weights: Parameters, name: str) -> Array:
    """``x W^T + b``: ``(N, from) -> (N, to)``."""
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]  # (2)


def layer_norm(x: Array, weights: Parameters, name: str, eps: float) -> Array:
    """Equation (6), over the last axis; the shape of ``x``."""
    params = norm.Params(weights[f"{name}.weight"], weights[f"{name}.bias"])
    return norm.forward.unchecked(x, params, eps=eps)[0]  # (6)


def split_heads(x: Array, heads: int) -> Array:
    """``(N, E) -> (H, N, D)``: head h has columns ``h D ... (h + 1) D``."""
    return x.reshape(x.shape[0], heads, -1).swapaxes(0, 1)


def merge_heads(x: Array) -> Array:
    """``(H, N, D) -> (N, E)``: the inverse of :func:`split_heads`."""
    return x.swapaxes(0, 1).reshape(x.shape[1], -1)


def check_tokens(tokens: ArrayLike, config: Config) -> NDArray[np.integer]:
    """``tokens`` as an array, if they are a sequence that the model can read; see :func:`embed`."""
    ids = np.asarray(tokens)
    if ids.ndim != 1 or ids.size == 0:
        raise ValueError(f"tokens: expected one sequence (N,) of at least one token, got shape {ids.shape}")
    if not np.issubdtype(ids.dtype, np.integer):
        raise TypeError(f"tokens: expected integers, got {ids.dtype}")
    if ids.size > config.max_tokens:
        raise ValueError(f"tokens: the model has positions for {config.max_tokens} tokens, got {ids.size}")
    if ids.min() < 0 or ids.max() >= config.vocabulary:
        raise ValueError(f"tokens: expected 0 to {config.vocabulary - 1}, got {ids.min()} to {ids.max()}")
    return ids


def _under(parameters: Parameters, prefix: str) -> Parameters:
    """The parameters whose names begin with ``prefix``, under the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in parameters.items() if name.startswith(prefix)}
