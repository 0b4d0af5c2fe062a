"""What an autoregressive transformer is made of: its parameters, how they are drawn, and what is not learned.

`linattn_ref.models.causal` runs it on all tokens at once, `causal_recurrent` token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.attention.arguments import Array
from linattn_ref.attention.fields import documented
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.nn import affine, embedding, gelu, layer_norm, multi_head, positions, pre_norm
from linattn_ref.nn.mechanism import Mechanism

__all__ = ["Model", "Params", "Tokens", "check_tokens", "draw", "embed", "places"]

Tokens = NDArray[np.integer[Any]]
JIT = "linattn_ref.kernels.jit"  # imported when it is first used


@documented
class Model(NamedTuple):
    """What is not learned."""

    mechanism: Mechanism  # causal
    heads: int
    block: ModuleType = pre_norm  # or post_norm, no_norm
    activation: ModuleType = gelu  # or relu
    sinusoids: Array | None = None  # (places, E - width of the embedding): fixed positions, in columns of their own
    kernels: Any = JIT  # the room of the layers' loops, or its name; the mechanism's is an option of its own
    dropout: float = 0.0  # the probability that a number of the embedding, or one that a layer adds, is left out
    recompute: bool = False  # hidden units in the backward pass: a ninth more products, two fifths less kept


@documented
class Params(NamedTuple):
    """What is learned."""

    embedding: embedding.Params  # (V, E)
    positions: positions.Params | None  # (places, E); None where they are fixed
    blocks: tuple[Any, ...]  # `block.Params`, or those of `no_norm`
    norm: layer_norm.Params  # (E,)
    head: affine.Params  # (E, V)


def check_tokens(tokens: Tokens, params: Params, model: Model) -> None:
    """Tokens ``(B, N)`` of a network that fits them."""
    embedding.check_tokens("tokens", tokens, len(params.embedding.table))
    if tokens.ndim != 2 or tokens.size == 0:
        raise ValueError(f"tokens: expected shape (B, N) of at least one token, got {tokens.shape}")
    if not isinstance(model, Model):
        raise TypeError(f"model: expected a causal.Model, got {model!r}")
    if (params.positions is None) == (model.sinusoids is None):
        raise ValueError("model: expected either sinusoids or params.positions, got both or neither")
    if tokens.shape[1] > places(params, model):
        raise ValueError(f"tokens: there are {places(params, model)} places, got {tokens.shape[1]} tokens")
    rows = embed(tokens[:1, :1], params, model, 0)  # (1, 1, E), for its width and dtype
    for one in params.blocks:
        multi_head.check_params(rows, one.attention, model.mechanism, model.heads)


def places(params: Params, model: Model) -> int:
    """How many tokens a sequence may have."""
    return len(params.positions.table if params.positions is not None else model.sinusoids)  # type: ignore[arg-type]


def embed(tokens: Tokens, params: Params, model: Model, first: int) -> Array:
    """Equation (1) for tokens ``(B, N)`` from place ``first`` on: ``(B, N, E)``."""
    x = params.embedding.table[tokens]
    if params.positions is not None:
        return x + params.positions.table[first : first + tokens.shape[1]]
    return positions.beside(x, model.sinusoids[first:])  # type: ignore[index]


@plain_numbers
def draw(
    rng: np.random.Generator,
    *,
    tokens: int,
    places: int,
    width: int,
    hidden: int,
    layers: int,
    outputs: int | None = None,
    sinusoids: int = 0,
    block: ModuleType = pre_norm,
    reads: int = 3,
    own: Sequence[tuple[Any, ...]] | None = None,
    dtype: Any = np.float64,
) -> Params:
    """Parameters to start from.

    Parameters
    ----------
    rng : numpy.random.Generator
    tokens, places : int
        ``V`` and the longest sequence.
    width, hidden, layers : int
        ``E``, the width within the feed-forward layers, the number of blocks.
    outputs : int, optional
        Scores a place, if not ``V``: of a mixture of logistics, say.
    sinusoids : int
        Columns of the model's fixed positions, if it has them; the embedding has the others, and ``places`` is theirs.
    block : module
        The model's: what it draws for each layer.
    reads : int
        Of the mechanism: `mechanism.Mechanism.reads`.
    own : sequence of tuples, optional
        The mechanism's own parameters, and those of its gates, for each block.
    dtype
        float32 or float64.
    """
    own = own or ((),) * layers
    return Params(
        embedding.draw(tokens, width - sinusoids, rng, dtype=dtype),
        None if sinusoids else positions.draw(places, width, rng, dtype=dtype),
        tuple(block.draw(width, hidden, rng, reads=reads, own=each, dtype=dtype) for each in own),
        layer_norm.draw(width, dtype=dtype),
        affine.draw(width, tokens if outputs is None else outputs, rng, dtype=dtype),
    )
