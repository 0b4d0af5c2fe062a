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

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.rooms import name_of_room, room_of
from linattn_ref.models.causal_network import Model, Params, Tokens, check_tokens, draw, embed, places
from linattn_ref.models.causal_recurrent import State, init_state, read, step
from linattn_ref.nn import affine, dropout, embedding, layer_norm, positions
from linattn_ref.nn.buffers import Work, fresh

__all__ = [
    "Gradients",
    "Model",
    "Params",
    "Saved",
    "State",
    "backward",
    "draw",
    "embed",
    "forward",
    "init_state",
    "places",
    "read",
    "step",
]


@documented
class Saved(NamedTuple):
    """What the backward pass needs: what the layers do."""

    embedding: embedding.Saved
    positions: positions.Saved | None
    drop: dropout.Saved
    blocks: tuple[Any, ...]
    norm: layer_norm.Saved
    head: affine.Saved
    kind: Any  # the module of the blocks, by its name


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    tokens: None
    params: Params


def check_forward(
    tokens: Tokens, params: Params, model: Model, *, rng: np.random.Generator | None = None, **_: Any
) -> None:
    """Arguments of :func:`forward`."""
    check_tokens(tokens, params, model)
    dropout.check_options(model.dropout, rng, "model.dropout")


@door(check_forward)
def forward(
    tokens: Tokens, params: Params, model: Model, *, rng: np.random.Generator | None = None, work: Work = fresh
) -> tuple[Array, Saved]:
    """Equations (1)-(3).

    Parameters
    ----------
    tokens : ndarray of int ``(B, N)``
    params : Params
    model : Model
    rng : numpy.random.Generator, optional
        Draws what ``model.dropout`` leaves out; without it nothing is.
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
    x, drop = dropout.forward.unchecked(x, p=model.dropout, rng=rng, work=work)
    options = {"heads": model.heads, "activation": model.activation, "recompute": model.recompute}
    options |= {"dropout": model.dropout, "rng": rng, "kernels": kernels, "work": work}
    blocks = []
    for one in params.blocks:
        x, saved = model.block.forward.unchecked(x, one, model.mechanism, **options)  # (2)
        blocks.append(saved)
    x, norm = layer_norm.forward.unchecked(x, params.norm, kernels=kernels, work=work)
    scores, head = affine.forward.unchecked(x, params.head, work=work)  # (3)  (B, N, V)
    return scores, Saved(embedded, placed, drop, tuple(blocks), norm, head, name_of_room(model.block))


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
    d_x = dropout.backward.unchecked(d_x, saved.drop, work=work).x
    placed = None
    if saved.positions is not None:
        d_x, placed = positions.backward.unchecked(d_x, saved.positions, into=of_positions, work=work)  # of (1)
    else:
        d_x = d_x[..., : saved.embedding.params.table.shape[1]]  # of (1): the other columns are constants
    _, embedded = embedding.backward.unchecked(d_x, saved.embedding, into=of_embedding, work=work)  # of (1)
    return Gradients(None, Params(embedded, placed, tuple(reversed(blocks)), norm, head))
