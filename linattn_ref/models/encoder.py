"""A bidirectional transformer: what it makes of a token depends on all others, before it and after it.

    x = T[tokens] + positions + types                        (1)  (B, N, E)
    x <- block_l(x)   for each block l                       (2)

and one layer norm besides those of the blocks: where these come last, as in BERT, it follows (1); where they come
first, it follows (2). Either way all that a sublayer or a head reads has been normed. Types tell which of two texts a
token belongs to. Most networks have none: ``params.types`` is None.

The gradient is that of the parts, last to first: the blocks (3), and what stands in (1), (4). `classifier` and
`masked_tokens` stand on this network.

>>> from linattn_ref.attention import softmax
>>> from linattn_ref.nn import mechanism
>>> model = Model(mechanism.of(softmax), heads=2)
>>> params = draw(np.random.default_rng(0), tokens=5, places=16, width=8, hidden=16, layers=2)
>>> rows, saved = forward(np.array([[0, 3, 1]]), params, model)
>>> rows.shape, len(backward(rows, saved).params.blocks)
((1, 3, 8), 2)

References
----------
Devlin et al. (2019), "BERT: pre-training of deep bidirectional transformers for language understanding", section 3.
Xiong et al. (2020), "On layer normalization in the transformer architecture", Figure 1.
Beltagy et al. (2020), "Longformer: the long-document Transformer", section 3.1, "Linear projections for
global attention" (they begin as the others).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.models.refit import own_of_each, refit
from linattn_ref.nn import dropout, embedding, gelu, layer_norm, positions, post_norm, pre_norm
from linattn_ref.nn.block import EPS
from linattn_ref.nn.mechanism import Mechanism
from linattn_ref.op import Array, Bool, Float, Int, Integers, Of, op
from linattn_ref.op.backends import JIT
from linattn_ref.op.options import plain

__all__ = ["Gradients", "Model", "Params", "Saved", "backward", "check_values", "draw", "forward", "look", "refit"]


class Model(NamedTuple):
    """What is not learned."""

    mechanism: Any  # a Mechanism, or a tuple of them: of all blocks, or of each its own: random features drawn for each
    heads: int
    block: ModuleType = pre_norm  # or post_norm
    activation: ModuleType = gelu  # or relu, gelu_tanh
    eps: float = EPS  # of the norms
    first: int = 0  # the row of the table of positions that the first token has
    kernels: Any = JIT  # the backend, or its name; a mechanism may have one of its own, as an option
    dropout: float = 0.0  # the probability that a number of the embedding, or one that a layer adds, is left out


class Params(NamedTuple):
    embedding: Of[embedding.Params, "V E"]
    positions: Of[positions.Params, "P E"]
    types: Of[embedding.Params, "T E"] | None
    norm: Of[layer_norm.Params, "E"]
    blocks: tuple[Any, ...]  # `block.Params`


class Saved(NamedTuple):
    norm: Of[layer_norm.Saved, "E"]
    embedding: Of[embedding.Saved, "V E"]
    positions: positions.Saved
    types: embedding.Saved | None
    drop: dropout.Saved
    blocks: tuple[Any, ...]
    backward: Callable[..., Any]  # the blocks'


class Gradients(NamedTuple):
    tokens: None
    params: Params


def look(tokens: Any, params: Any, model: Any, types: Any = None, key_mask: Any = None, rng: Any = None) -> None:
    dropout.check_options(model.dropout, rng, "model.dropout")
    first, places = plain(model.first), len(params.positions.table)
    if type(first) is not int or not 0 <= first < places:
        raise ValueError(f"model.first: expected an integer from 0 to {places - 1}, got {first!r}")
    if tokens.shape[1] > places - first:
        raise ValueError(f"tokens: there are {places - first} places, got {tokens.shape[1]} tokens")
    if types is not None and params.types is None:
        raise ValueError("types: the network has none, params.types is None")
    if "eps" not in inspect.signature(model.block.forward).parameters:
        raise ValueError(f"model.block: expected pre_norm or post_norm, got {model.block.__name__}")
    row = np.broadcast_to(params.norm.gain[:1, None], (*tokens.shape, len(params.norm.gain)))  # a shape and a dtype
    layer_norm.forward.check(row, params.norm, eps=model.eps)
    for one, inside in zip(params.blocks, _inside(params, model), strict=True):
        options = {"heads": model.heads, "activation": model.activation, "eps": model.eps}
        model.block.forward.check(row, one, inside, key_mask=key_mask, **options)


def check_values(tokens: Any, params: Any, types: Any = None, **_: Any) -> None:
    embedding.check_tokens("tokens", tokens, len(params.embedding.table))
    if types is not None:
        embedding.check_tokens("types", types, len(params.types.table))


@op(look=look, values=check_values)
def forward(
    tokens: Int[Integers, "B N"],
    params: Params,
    model: Model,
    *,
    types: Int[Integers, "B N"] | None = None,
    key_mask: Bool[Array, "B N"] | None = None,
    rng: np.random.Generator | None = None,
) -> tuple[Array, Saved]:
    """Equations (1) and (2), and the norm.

    Parameters
    ----------
    tokens : ndarray of int ``(B, N)``
    params : Params
    model : Model
    types : ndarray of int ``(B, N)``, optional
        All 0 unless given, if the network has types.
    key_mask : ndarray of bool ``(B, N)``, optional
        False where a token only pads its sequence: nobody sees it. Its own row is of no use.
    rng : numpy.random.Generator, optional
        Draws what ``model.dropout`` leaves out; without it nothing is.

    Returns
    -------
    rows : ndarray ``(B, N, E)``
    saved : Saved
    """
    x, embedded = embedding.forward(tokens, params.embedding)  # (1)  (B, N, E)
    x, placed = positions.forward(x, params.positions, first=model.first)  # (1)
    typed, blocks = None, []
    if params.types is not None:
        row, typed = embedding.forward(np.zeros((1, 1), int) if types is None else types, params.types)
        x = x + row  # (1)
    if model.block is post_norm:
        x, norm = layer_norm.forward(x, params.norm, eps=model.eps)
    x, drop = dropout.forward(x, p=model.dropout, rng=rng)
    options = {"heads": model.heads, "activation": model.activation, "dropout": model.dropout, "rng": rng}
    options |= {"key_mask": key_mask, "eps": model.eps}
    for one, inside in zip(params.blocks, _inside(params, model), strict=True):
        x, saved = model.block.forward(x, one, inside, **options)  # (2)
        blocks.append(saved)
    if model.block is not post_norm:
        x, norm = layer_norm.forward(x, params.norm, eps=model.eps)
    return x, Saved(norm, embedded, placed, typed, drop, tuple(blocks), model.block.backward)


@op
def backward(d_rows: Float[Array, "... E"], saved: Saved) -> Gradients:
    """The norm, and back through (2) and (1)."""
    d_x, norms_last, blocks, typed = d_rows, saved.backward is post_norm.backward, [], None
    if not norms_last:
        d_x, norm = layer_norm.backward(d_x, saved.norm)
    for one in reversed(saved.blocks):
        d_x, gradient = saved.backward(d_x, one)  # (3)
        blocks.append(gradient)
    d_x = dropout.backward(d_x, saved.drop).x
    if norms_last:
        d_x, norm = layer_norm.backward(d_x, saved.norm)
    if saved.types is not None:  # where all are of one type, its row has a share in each
        d_row = d_x.sum(axis=(0, 1), keepdims=True) if saved.types.tokens.size == 1 else d_x
        _, typed = embedding.backward(d_row, saved.types)  # (4)
    d_x, placed = positions.backward(d_x, saved.positions)  # (4)
    _, embedded = embedding.backward(d_x, saved.embedding)  # (4)
    return Gradients(None, Params(embedded, placed, typed, norm, tuple(reversed(blocks))))


def _inside(params: Params, model: Model) -> tuple[Mechanism, ...]:
    """The mechanism of each block."""
    if isinstance(model.mechanism, Mechanism):
        return (model.mechanism,) * len(params.blocks)
    if not isinstance(model.mechanism, (tuple, list)):
        told = type(model.mechanism).__name__
        raise TypeError(f"model.mechanism: expected mechanism.Mechanism, or one for each block, got {told}")
    if len(model.mechanism) != len(params.blocks):
        raise ValueError(
            f"model.mechanism: expected one, or one for each of {len(params.blocks)} blocks, got {len(model.mechanism)}"
        )
    return tuple(model.mechanism)


@op
def draw(
    rng: np.random.Generator,
    *,
    tokens: int,
    places: int,
    width: int,
    hidden: int,
    layers: int,
    types: int = 0,
    reads: int = 3,
    own: Sequence[tuple[Any, ...]] | None = None,
    dtype: Any = np.float64,
) -> Params:
    """Parameters to start from.

    Parameters
    ----------
    rng : numpy.random.Generator
    tokens, places, types : int
        ``V``, the longest sequence, and how many types there are.
    width, hidden, layers : int
        ``E``, the width within the feed-forward layers, the number of blocks.
    reads : int
        Of the mechanism: `mechanism.Mechanism.reads`.
    own : sequence of tuples, optional
        The mechanism's own parameters, for each block. An array that stands in several is learned as one:
        `linattn_ref.training.parameters`.
    dtype
        float32 or float64.
    """
    return Params(
        embedding.draw(tokens, width, rng, dtype=dtype),
        positions.draw(places, width, rng, dtype=dtype),
        embedding.draw(types, width, rng, dtype=dtype) if types else None,
        layer_norm.draw(width, dtype=dtype),
        tuple(
            pre_norm.draw(width, hidden, rng, reads=reads, own=each, dtype=dtype) for each in own_of_each(own, layers)
        ),
    )
