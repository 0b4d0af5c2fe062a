"""What an autoregressive transformer is made of: its parameters, how they are drawn, and what is not learned.

`linattn_ref.models.causal` runs it on all tokens at once, `causal_recurrent` token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.models.refit import own_of_each
from linattn_ref.nn import affine, embedding, gelu, layer_norm, positions, pre_norm
from linattn_ref.nn.mechanism import Mechanism, shared
from linattn_ref.op import Array, Integers, Of, op
from linattn_ref.op.backends import JIT
from linattn_ref.op.options import check_sizes, plain
from linattn_ref.op.shapes import check_array

__all__ = ["Model", "Params", "check_tokens", "draw", "embed", "look", "places"]


class Model(NamedTuple):
    """What is not learned."""

    mechanism: Mechanism  # causal
    heads: int
    block: ModuleType = pre_norm  # or post_norm, no_norm
    activation: ModuleType = gelu  # or relu
    sinusoids: Array | None = None  # (places, E - width of the embedding): fixed positions, in columns of their own
    kernels: Any = JIT  # the backend, or its name; a mechanism may have one of its own, as an option
    dropout: float = 0.0  # the probability that a number of the embedding, or one that a layer adds, is left out
    groups: int = 1  # heads of queries that read the same head of keys and values

    @property
    def inside(self) -> Mechanism:
        """The mechanism, with heads that are shared."""
        return shared(self.mechanism, self.groups)


class Params(NamedTuple):
    embedding: Of[embedding.Params, "V C"]  # C = E, but for the columns of sinusoids
    positions: Of[positions.Params, "P E"] | None  # None where they are fixed
    blocks: tuple[Any, ...]  # `block.Params`, or those of `no_norm`
    norm: Of[layer_norm.Params, "E"]
    head: Of[affine.Params, "E S"]  # S = V scores per place, as a rule


def look_at_network(params: Any, model: Any, **_: Any) -> None:
    """Check that parameters and model fit together, and that no token sees later ones."""
    if not model.mechanism.is_causal:
        whose = "causal=True among its options" if "causal" in model.mechanism.accepts["forward"] else "a causal one"
        raise ValueError(f"model.mechanism: expected {whose}, or a token would see later ones")
    check_sizes(heads=plain(model.heads), groups=plain(model.inside.options.get("groups", 1)))
    if model.sinusoids is not None:
        check_array("model.sinusoids", model.sinusoids)
        if model.sinusoids.ndim != 2:
            raise ValueError(f"model.sinusoids: expected 2 axes, got shape {model.sinusoids.shape}")
    if (params.positions is None) == (model.sinusoids is None):
        raise ValueError("model: expected either sinusoids or params.positions, got both or neither")
    columns = 0 if model.sinusoids is None else model.sinusoids.shape[1]
    if params.embedding.table.shape[1] + columns != len(params.norm.gain):
        raise ValueError("model.sinusoids: expected the columns that the embedding leaves, got another number of them")


def look(tokens: Any, params: Any, model: Any, **_: Any) -> None:
    """Check a network, and that it has places for the tokens ``(B, N)``."""
    look_at_network(params, model)
    if tokens.shape[1] > places(params, model):
        raise ValueError(f"tokens: there are {places(params, model)} places, got {tokens.shape[1]} tokens")
    row = np.broadcast_to(params.norm.gain[:1, None], (*tokens.shape, len(params.norm.gain)))  # a shape and a dtype
    for one in params.blocks:
        model.block.forward.check(row, one, model.inside, heads=model.heads, activation=model.activation)


def check_tokens(tokens: Any, params: Any, **_: Any) -> None:
    embedding.check_tokens("tokens", tokens, len(params.embedding.table))


def places(params: Params, model: Model) -> int:
    """Return how many tokens a sequence may have."""
    return len(params.positions.table if params.positions is not None else model.sinusoids)  # type: ignore[arg-type]


def embed(tokens: Integers, params: Params, model: Model, first: int) -> Array:
    """Equation (1) of `causal` for tokens ``(B, N)`` from place ``first`` on: ``(B, N, E)``."""
    x = params.embedding.table[tokens]
    if params.positions is not None:
        return x + params.positions.table[first : first + tokens.shape[1]]
    return positions.beside(x, model.sinusoids[first:])  # type: ignore[index]


@op
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
    groups: int = 1,
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
        Scores per place, if not ``V``: of a mixture of logistics, say.
    sinusoids : int
        Columns of the model's fixed positions, if it has them; the embedding has the others, and ``places`` is theirs.
    block : module
        The model's: what it draws for each layer.
    reads : int
        Of the mechanism: `mechanism.Mechanism.reads`.
    groups : int
        The model's.
    own : sequence of tuples, optional
        The mechanism's own parameters, and those of its gates, for each block.
    dtype
        float32 or float64.
    """
    if sinusoids >= width:
        raise ValueError(f"sinusoids: expected fewer columns than width = {width}, got {sinusoids}")
    return Params(
        embedding.draw(tokens, width - sinusoids, rng, dtype=dtype),
        None if sinusoids else positions.draw(places, width, rng, dtype=dtype),
        tuple(
            block.draw(width, hidden, rng, reads=reads, groups=groups, own=each, dtype=dtype)
            for each in own_of_each(own, layers)
        ),
        layer_norm.draw(width, dtype=dtype),
        affine.draw(width, tokens if outputs is None else outputs, rng, dtype=dtype),
    )
