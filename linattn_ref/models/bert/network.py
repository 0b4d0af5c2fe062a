"""BERT as `linattn_ref.models.encoder`: the checkpoint's parameters as layers take them, and a look into each layer.

    X = LayerNorm(word[t_i] + position[i] + type[0])                (1)

then, layer by layer, with H heads side by side in Q, K and V,

    Q = X W_Q^T + b_Q,  K = X W_K^T + b_K,  V = X W_V^T + b_V       (2)
    P = softmax(Q K^T / sqrt(D))                                    (3)
    Y = LayerNorm(X + (P V) W_O^T + b_O)                            (4)
    X = LayerNorm(Y + gelu(Y W_1^T + b_1) W_2^T + b_2)              (5)

That is an encoder whose blocks have their norms last. A checkpoint stores ``W`` as ``(to, from)``; layers take
``(from, to)``, and ``W_Q``, ``W_K``, ``W_V`` side by side.

``P``, the context mapping matrix, is what the low-rank argument is about: :func:`layers` hands out every layer's.

References
----------
Devlin et al. (2019), "BERT: pre-training of deep bidirectional transformers for language understanding".
Liu et al. (2019), "RoBERTa: a robustly optimized BERT pretraining approach". The same network; its table of
positions starts at ``pad_token_id + 1``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from linattn_ref.attention import softmax
from linattn_ref.models import encoder
from linattn_ref.models.bert.config import ACTIVATIONS
from linattn_ref.models.bert.weights import Model, Parameters
from linattn_ref.nn import affine, embedding, feed_forward, layer_norm, mechanism, multi_head, positions, post_norm
from linattn_ref.nn.mechanism import Mechanism
from linattn_ref.op import Array
from linattn_ref.op.backends import PAGES

__all__ = ["Layer", "embed", "encode", "layers", "network", "pooler"]


# --- As an encoder --------------------------------------------------------------------------------------------------


def network(
    model: Model,
    inside: Mechanism | tuple[Mechanism, ...] | None = None,
    *,
    own: Sequence[tuple[Any, ...]] | None = None,
) -> tuple[encoder.Model, encoder.Params]:
    """The pretrained network, to be run, trained on, or run with another mechanism.

    Parameters
    ----------
    model : Model
    inside : Mechanism, or one for each layer, optional
        In place of softmax attention, with the projections that were trained for that.
    own : sequence of tuples, optional
        Parameters of the mechanism's own, for each layer.

    Returns
    -------
    encoder.Model, encoder.Params
        Float32, for the most part views of the model's own arrays: `training.parameters.flatten` makes new ones.
    """
    config, parameters = model.config, model.parameters
    inside = mechanism.of(softmax) if inside is None else inside
    each = (inside,) if isinstance(inside, Mechanism) else inside
    if len({one.reads for one in each}) != 1:
        raise ValueError("inside: expected mechanisms that read equally many arrays")
    how = encoder.Model(
        inside,
        config.heads,
        post_norm,
        ACTIVATIONS[config.activation],
        config.layer_norm_eps,
        config.first_position,
        PAGES,
    )
    of_embeddings = _under(parameters, "embeddings.")
    of_layers = [_under(parameters, f"encoder.layer.{index}.") for index in range(config.layers)]
    params = encoder.Params(
        embedding.Params(of_embeddings["word_embeddings.weight"]),
        positions.Params(of_embeddings["position_embeddings.weight"]),
        embedding.Params(of_embeddings["token_type_embeddings.weight"]),
        _norm(of_embeddings, "LayerNorm"),
        tuple(map(_block, of_layers)),
    )
    return how, params if each[0].reads == 3 and own is None else encoder.refit(params, each[0].reads, own)


def pooler(model: Model) -> affine.Params | None:
    """``W`` and ``b`` of the layer that `linattn_ref.models.classifier` calls the pooler; None if it was not stored."""
    return None if model.pooler is None else _affine(model.pooler, "pooler.dense")


def _block(weights: Parameters) -> post_norm.Params:
    """(2)-(5) as the parameters of `linattn_ref.nn.post_norm`."""
    parts = [_affine(weights, f"attention.self.{name}") for name in ("query", "key", "value")]
    side_by_side = affine.Params(
        np.concatenate([part.w for part in parts], axis=1), np.concatenate([b for _, b in parts])
    )
    return post_norm.Params(
        _norm(weights, "attention.output.LayerNorm"),
        multi_head.Params(side_by_side, _affine(weights, "attention.output.dense")),
        _norm(weights, "output.LayerNorm"),
        feed_forward.Params(_affine(weights, "intermediate.dense"), _affine(weights, "output.dense")),
    )


def _affine(weights: Parameters, name: str) -> affine.Params:
    return affine.Params(weights[f"{name}.weight"].T, weights[f"{name}.bias"])


def _norm(weights: Parameters, name: str) -> layer_norm.Params:
    return layer_norm.Params(weights[f"{name}.weight"], weights[f"{name}.bias"])


def _under(parameters: Parameters, prefix: str) -> Parameters:
    """The parameters whose names begin with ``prefix``, under the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in parameters.items() if name.startswith(prefix)}


# --- A look into each layer -----------------------------------------------------------------------------------------


class Layer(NamedTuple):
    """What one layer computed."""

    q: Array  # (H, N, D)
    k: Array  # (H, N, D)
    v: Array  # (H, N, D)
    p: Array  # (H, N, N), rows sum to 1
    hidden: Array  # (N, E), the layer's output


def layers(model: Model, tokens: ArrayLike) -> Iterator[Layer]:
    """Run the encoder over one sequence, and hand out each layer.

    Parameters
    ----------
    model : Model
    tokens : array_like of int ``(N,)``
        Special tokens included; no padding. At most ``model.config.max_tokens``.

    Returns
    -------
    iterator of Layer
        First layer first. A layer's ``P`` is in memory until the next one's is there, unless the caller keeps it.

    Raises
    ------
    TypeError, ValueError
        As :func:`embed`, at once and not at the first layer.
    """
    return _layers(embed(model, tokens)[None], *network(model))


def _layers(x: Array, how: encoder.Model, params: encoder.Params) -> Iterator[Layer]:
    options = {"heads": how.heads, "activation": how.activation, "eps": how.eps}
    for one in params.blocks:
        x, saved = how.block.forward(x, one, how.mechanism, **options)  # (2)-(5)
        (q,), (k,), (v,), (p,) = saved.attention.attention[:4]  # (H, N, D) and (H, N, N)
        yield Layer(q, k, v, p, x[0])


def encode(model: Model, tokens: ArrayLike) -> Array:
    """The last layer's output ``(N, E)`` for one sequence of ``tokens``; see :func:`layers`."""
    how, params = network(model)
    return encoder.forward(check_tokens(tokens)[None], params, how)[0][0]


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
    return encode(model._replace(config=model.config._replace(layers=0)), tokens)


def check_tokens(tokens: ArrayLike) -> NDArray[np.integer]:
    """``tokens`` as an array, if they are one sequence; see :func:`embed`."""
    ids = np.asarray(tokens)
    if ids.ndim != 1 or ids.size == 0:
        raise ValueError(f"tokens: expected one sequence (N,) of at least one token, got shape {ids.shape}")
    if not np.issubdtype(ids.dtype, np.integer):
        raise TypeError(f"tokens: expected integers, got {ids.dtype}")
    return ids
