"""A bidirectional transformer: what it makes of a token depends on all others, before it and after it.

    x = T[tokens] + positions + types                        (1)  (B, N, E)
    x <- block_l(x)   for each block l                       (2)

and one layer norm beside those of the blocks: where these come last, as in BERT, it follows (1); where they come first,
it follows (2). Either way all that a sublayer or a head reads has been normed. Types say which of two texts a token is
of; most networks, and ``types=None``, have none.

The gradient is that of the parts, last to first. `classifier` and `masked_tokens` stand on this network.

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
Beltagy et al. (2020), "Longformer: the long-document transformer", section 3.1, "Linear projections for
global attention" (they begin as the others).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.attention.arguments import Array, Mask, check_bool, check_shape
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.attention.rooms import name_of_room, room_of
from linattn_ref.models.refit import refit
from linattn_ref.nn import (
    block,
    dropout,
    embedding,
    gelu,
    layer_norm,
    multi_head,
    positions,
    post_norm,
    pre_norm,
)
from linattn_ref.nn.block import EPS
from linattn_ref.nn.buffers import Work, fresh
from linattn_ref.nn.mechanism import Mechanism

__all__ = ["Gradients", "Model", "Params", "Saved", "backward", "draw", "forward", "refit"]

Tokens = NDArray[np.integer[Any]]
JIT = "linattn_ref.kernels.jit"  # imported when it is first used


@documented
class Model(NamedTuple):
    """What is not learned."""

    mechanism: Mechanism | tuple[Mechanism, ...]  # of all blocks, or of each its own: random features drawn for each
    heads: int
    block: ModuleType = pre_norm  # or post_norm
    activation: ModuleType = gelu  # or relu, gelu_tanh
    eps: float = EPS  # of the norms
    first: int = 0  # the row of the table of positions that the first token has
    kernels: Any = JIT  # the room of the layers' loops, or its name; the mechanism's is an option of its own
    dropout: float = 0.0  # the probability that a number of the embedding, or one that a layer adds, is left out
    recompute: bool = False  # hidden units in the backward pass: a ninth more products, two fifths less kept


@documented
class Params(NamedTuple):
    """What is learned."""

    embedding: embedding.Params  # (V, E)
    positions: positions.Params  # (places, E)
    types: embedding.Params | None  # (types, E)
    norm: layer_norm.Params  # (E,)
    blocks: tuple[block.Params, ...]


@documented
class Saved(NamedTuple):
    """What the backward pass needs: what the layers do."""

    embedding: embedding.Saved
    positions: positions.Saved
    types: embedding.Saved | None
    norm: layer_norm.Saved
    drop: dropout.Saved
    blocks: tuple[block.Saved, ...]
    kind: Any  # the module of the blocks, by its name


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    tokens: None
    params: Params


def check_forward(
    tokens: Tokens,
    params: Params,
    model: Model,
    *,
    types: Tokens | None = None,
    key_mask: Mask | None = None,
    rng: np.random.Generator | None = None,
    **_: Any,
) -> None:
    """Arguments of :func:`forward`."""
    embedding.check_tokens("tokens", tokens, len(params.embedding.table))
    if tokens.ndim != 2 or tokens.size == 0:
        raise ValueError(f"tokens: expected shape (B, N) of at least one token, got {tokens.shape}")
    if not isinstance(model, Model):
        raise TypeError(f"model: expected an encoder.Model, got {model!r}")
    dropout.check_options(model.dropout, rng, "model.dropout")
    places = len(params.positions.table) - model.first
    if tokens.shape[1] > places:
        raise ValueError(f"tokens: there are {places} places, got {tokens.shape[1]} tokens")
    if types is not None:
        if params.types is None:
            raise ValueError("types: the network has none, params.types is None")
        embedding.check_tokens("types", types, len(params.types.table))
        check_shape("types", types, tokens.shape, "of tokens")  # type: ignore[arg-type]
    if key_mask is not None:
        check_bool("key_mask", key_mask)
        check_shape("key_mask", key_mask, tokens.shape, "of tokens")  # type: ignore[arg-type]
    for one, inside in zip(params.blocks, _inside(params, model), strict=True):
        multi_head.check_params(params.embedding.table, one.attention, inside, model.heads)


@door(check_forward)
def forward(
    tokens: Tokens,
    params: Params,
    model: Model,
    *,
    types: Tokens | None = None,
    key_mask: Mask | None = None,
    rng: np.random.Generator | None = None,
    work: Work = fresh,
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
    work
        See `linattn_ref.nn`.

    Returns
    -------
    rows : ndarray ``(B, N, E)``
    saved : Saved
    """
    kernels = room_of(model.kernels)
    x, embedded = embedding.forward.unchecked(tokens, params.embedding, work=work)  # (1)  (B, N, E)
    x, placed = positions.forward.unchecked(x, params.positions, first=model.first, work=work)  # (1)
    typed = None
    if params.types is not None:
        of_all = np.zeros((1, 1), int)
        row, typed = embedding.forward.unchecked(of_all if types is None else types, params.types, work=work)
        x = x + row  # (1)
    if model.block is post_norm:
        x, norm = layer_norm.forward.unchecked(x, params.norm, eps=model.eps, kernels=kernels, work=work)
    x, drop = dropout.forward.unchecked(x, p=model.dropout, rng=rng, work=work)
    options = {"heads": model.heads, "activation": model.activation, "recompute": model.recompute}
    options |= {"dropout": model.dropout, "rng": rng, "key_mask": key_mask, "eps": model.eps, "kernels": kernels}
    blocks = []
    for one, inside in zip(params.blocks, _inside(params, model), strict=True):
        x, saved = model.block.forward.unchecked(x, one, inside, **options, work=work)  # (2)
        blocks.append(saved)
    if model.block is not post_norm:
        x, norm = layer_norm.forward.unchecked(x, params.norm, eps=model.eps, kernels=kernels, work=work)
    return x, Saved(embedded, placed, typed, norm, drop, tuple(blocks), name_of_room(model.block))


def check_backward(d_rows: Array, saved: Saved, **_: Any) -> None:
    """Shape and dtype of :func:`backward`."""
    layer_norm.check_backward(d_rows, saved.norm)


@door(check_backward)
def backward(d_rows: Array, saved: Saved, *, into: Params | None = None, work: Work = fresh) -> Gradients:
    """The norm, and back through (2) and (1)."""
    nowhere = (None, None, None, None, (None,) * len(saved.blocks))
    of_embedding, of_positions, of_types, of_norm, of_blocks = into or nowhere
    kind, d_x = room_of(saved.kind), d_rows
    if kind is not post_norm:
        d_x, norm = layer_norm.backward.unchecked(d_x, saved.norm, into=of_norm, work=work)
    blocks = []
    for one, of_one in zip(reversed(saved.blocks), reversed(of_blocks), strict=True):
        d_x, gradient = kind.backward.unchecked(d_x, one, into=of_one, work=work)  # of (2)
        blocks.append(gradient)
    d_x = dropout.backward.unchecked(d_x, saved.drop, work=work).x
    if kind is post_norm:
        d_x, norm = layer_norm.backward.unchecked(d_x, saved.norm, into=of_norm, work=work)
    typed = None
    if saved.types is not None:  # of (1); where all are of one type, its row has a share in each
        d_row = d_x.sum(axis=(0, 1), keepdims=True) if saved.types.tokens.size == 1 else d_x
        _, typed = embedding.backward.unchecked(d_row, saved.types, into=of_types, work=work)
    d_x, placed = positions.backward.unchecked(d_x, saved.positions, into=of_positions, work=work)  # of (1)
    _, embedded = embedding.backward.unchecked(d_x, saved.embedding, into=of_embedding, work=work)  # of (1)
    return Gradients(None, Params(embedded, placed, typed, norm, tuple(reversed(blocks))))


def _inside(params: Params, model: Model) -> tuple[Mechanism, ...]:
    """The mechanism of each block."""
    if isinstance(model.mechanism, Mechanism):
        return (model.mechanism,) * len(params.blocks)
    if len(model.mechanism) != len(params.blocks):
        raise ValueError(
            f"model.mechanism: expected one, or one for each of {len(params.blocks)} blocks, got {len(model.mechanism)}"
        )
    return model.mechanism


@plain_numbers
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
    own = own or ((),) * layers
    return Params(
        embedding.draw(tokens, width, rng, dtype=dtype),
        positions.draw(places, width, rng, dtype=dtype),
        embedding.draw(types, width, rng, dtype=dtype) if types else None,
        layer_norm.draw(width, dtype=dtype),
        tuple(block.draw(width, hidden, rng, reads=reads, own=each, dtype=dtype) for each in own),
    )
