"""An autoregressive transformer: it reads tokens and says at each place what comes next, seeing none of it.

    x = T[tokens] + positions, or [T[tokens], sinusoids]     (1)
    x <- block_l(x)   for each block l                       (2)
    scores = norm(x) W + b                                   (3)  (B, N, V)

Ways to run it, which give the same numbers: all tokens at once (:func:`forward`), for training; one token after the
other (:func:`step`), as a recurrent network of constant memory with linear attention, or with softmax and its cache;
and some at once to go on from (:func:`read`). `linattn_ref.models.decoding` has a step that is compiled.

Positions are learned and added, or Vaswani's sinusoids, which are fixed, in columns of their own beside the
embedding's: so have it the authors of "Transformers are RNNs".

The gradient is that of the parts, last to first.

>>> from linattn_ref.attention import linear
>>> from linattn_ref.nn import mechanism
>>> model = Model(mechanism.of(linear, causal=True), heads=2)
>>> params = draw(np.random.default_rng(0), tokens=5, places=16, width=8, hidden=16, layers=2)
>>> scores, saved = forward(np.array([[0, 3, 1]]), params, model)
>>> scores.shape, len(backward(scores, saved).params.blocks)
((1, 3, 5), 2)

References
----------
Radford et al. (2019), "Language models are unsupervised multitask learners", section 2.3 (norms first, one at the end).
Katharopoulos et al. (2020), "Transformers are RNNs", section 3.4 (token by token).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.attention.arguments import Array
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.rooms import name_of_room, room_of
from linattn_ref.nn import affine, embedding, gelu, layer_norm, multi_head, positions, pre_norm
from linattn_ref.nn.buffers import Work, fresh
from linattn_ref.nn.mechanism import Mechanism

__all__ = [
    "Gradients",
    "Model",
    "Params",
    "Saved",
    "State",
    "backward",
    "draw",
    "forward",
    "init_state",
    "read",
    "step",
]

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


@documented
class Params(NamedTuple):
    """What is learned."""

    embedding: embedding.Params  # (V, E)
    positions: positions.Params | None  # (places, E); None where they are fixed
    blocks: tuple[Any, ...]  # `block.Params`, or those of `no_norm`
    norm: layer_norm.Params  # (E,)
    head: affine.Params  # (E, V)


@documented
class Saved(NamedTuple):
    """What the backward pass needs: what the layers do."""

    embedding: embedding.Saved
    positions: positions.Saved | None
    blocks: tuple[Any, ...]
    norm: layer_norm.Saved
    head: affine.Saved
    kind: Any  # the module of the blocks, by its name


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    tokens: None
    params: Params


def check_forward(tokens: Tokens, params: Params, model: Model, **_: Any) -> None:
    """Arguments of :func:`forward`."""
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


@door(check_forward)
def forward(tokens: Tokens, params: Params, model: Model, *, work: Work = fresh) -> tuple[Array, Saved]:
    """Equations (1)-(3).

    Parameters
    ----------
    tokens : ndarray of int ``(B, N)``
    params : Params
    model : Model
    work
        See `linattn_ref.nn`.

    Returns
    -------
    scores : ndarray ``(B, N, V)``
        Of what comes after each token.
    saved : Saved
    """
    kernels = room_of(model.kernels)
    x, embedded = embedding.forward.unchecked(tokens, params.embedding, work=work)  # (1)  (B, N, E)
    placed = None
    if params.positions is not None:
        x, placed = positions.forward.unchecked(x, params.positions, work=work)  # (1)
    elif model.sinusoids is not None:
        x = positions.beside(x, model.sinusoids, work=work)  # (1)
    blocks = []
    for one in params.blocks:
        x, saved = model.block.forward.unchecked(
            x, one, model.mechanism, heads=model.heads, activation=model.activation, kernels=kernels, work=work
        )  # (2)
        blocks.append(saved)
    x, norm = layer_norm.forward.unchecked(x, params.norm, kernels=kernels, work=work)
    scores, head = affine.forward.unchecked(x, params.head, work=work)  # (3)  (B, N, V)
    return scores, Saved(embedded, placed, tuple(blocks), norm, head, name_of_room(model.block))


def check_backward(d_scores: Array, saved: Saved, **_: Any) -> None:
    """Shape and dtype of :func:`backward`."""
    affine.check_backward(d_scores, saved.head)


@door(check_backward)
def backward(d_scores: Array, saved: Saved, *, into: Params | None = None, work: Work = fresh) -> Gradients:
    """Back through (3), (2) and (1)."""
    nowhere = (None, None, (None,) * len(saved.blocks), None, None)
    of_embedding, of_positions, of_blocks, of_norm, of_head = into or nowhere
    d_x, head = affine.backward.unchecked(d_scores, saved.head, into=of_head, work=work)  # of (3)
    d_x, norm = layer_norm.backward.unchecked(d_x, saved.norm, into=of_norm, work=work)
    blocks = []
    for one, of_one in zip(reversed(saved.blocks), reversed(of_blocks), strict=True):
        d_x, gradient = room_of(saved.kind).backward.unchecked(d_x, one, into=of_one, work=work)  # of (2)
        blocks.append(gradient)
    placed = None
    if saved.positions is not None:
        d_x, placed = positions.backward.unchecked(d_x, saved.positions, into=of_positions, work=work)  # of (1)
    else:
        d_x = d_x[..., : saved.embedding.params.table.shape[1]]  # of (1): the other columns are constants
    _, embedded = embedding.backward.unchecked(d_x, saved.embedding, into=of_embedding, work=work)  # of (1)
    return Gradients(None, Params(embedded, placed, tuple(reversed(blocks)), norm, head))


# --- Token by token -------------------------------------------------------------------------------------------------


@documented
class State(NamedTuple):
    """What is carried from token to token."""

    blocks: tuple[Any, ...]  # the mechanism's, of each block
    place: int  # of the next token


def init_state(batch: int, params: Params, model: Model) -> State:
    """The state before the first token of ``batch`` sequences."""
    states = (
        multi_head.init_state(batch, one.attention, model.mechanism, heads=model.heads, capacity=places(params, model))
        for one in params.blocks
    )
    return State(tuple(states), 0)


def step(tokens_t: Tokens, params: Params, state: State, model: Model) -> tuple[Array, State]:
    """One token of each sequence: ``(B,)`` to scores ``(B, V)``, and the state after it; ``state`` is spent.

    Raises
    ------
    ValueError
        There is no place left.
    """
    embedding.check_tokens("tokens_t", tokens_t, len(params.embedding.table))
    if state.place >= places(params, model):
        raise ValueError(f"state: there are {places(params, model)} places, and all are taken")
    x_t = embed(tokens_t[:, None], params, model, state.place)[:, 0]  # (1)  (B, E)
    states, kernels = [], room_of(model.kernels)
    for one, before in zip(params.blocks, state.blocks, strict=True):
        x_t, after = model.block.step(
            x_t, one, before, model.mechanism, heads=model.heads, activation=model.activation, kernels=kernels
        )  # (2)
        states.append(after)
    scores, _ = affine.forward(layer_norm.forward(x_t, params.norm, kernels=kernels)[0], params.head)  # (3)  (B, V)
    return scores, State(tuple(states), state.place + 1)


def read(tokens: Tokens, params: Params, state: State, model: Model) -> State:
    """The state after more tokens, ``(B, N)``, all at once: as by N steps, and ``state`` is left alone."""
    check_forward(tokens, params, model)
    if state.place + tokens.shape[1] > places(params, model):
        raise ValueError(
            f"tokens: there are {places(params, model)} places, got {tokens.shape[1]} tokens after {state.place}"
        )
    x = embed(tokens, params, model, state.place)  # (1)  (B, N, E)
    states = []
    for one, before in zip(params.blocks, state.blocks, strict=True):
        going_on = model.mechanism._replace(options={**model.mechanism.options, "state": before})
        x, saved = model.block.forward.unchecked(
            x, one, going_on, heads=model.heads, activation=model.activation, kernels=room_of(model.kernels)
        )  # (2)
        states.append(saved.attention.attention.state)
    return State(tuple(states), state.place + tokens.shape[1])


def embed(tokens: Tokens, params: Params, model: Model, first: int) -> Array:
    """Equation (1) for tokens ``(B, N)`` from place ``first`` on: ``(B, N, E)``."""
    x = params.embedding.table[tokens]
    if params.positions is not None:
        return x + params.positions.table[first : first + tokens.shape[1]]
    return positions.beside(x, model.sinusoids[first:])  # type: ignore[index]


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
