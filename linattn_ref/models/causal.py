"""An autoregressive transformer: it reads tokens and predicts at each place the next one, which it does not see.

    x = T[tokens] + positions, or [T[tokens], sinusoids]     (1)
    x <- block_l(x)   for each block l                       (2)
    scores = norm(x) W + b                                   (3)  (B, N, V)

Ways to run it, which give the same numbers: all tokens at once (:func:`forward`), for training; one token after the
other (:func:`step`), as a recurrent network of constant memory with linear attention, or with softmax and its cache;
and some at once to go on from (:func:`read`). `linattn_ref.models.decoding` has a step that is compiled.

Positions are learned and added, or Vaswani's sinusoids, which are fixed, in columns of their own beside the
embedding's, as in the code of the authors of "Transformers are RNNs".

The gradient is that of the parts, last to first: of (3), from ``dscores``, (4); of the blocks (5); of (1), where ``dT``
adds up the rows of each token, (6).

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

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.models import causal_network
from linattn_ref.models.causal_network import Model, Params, check_tokens, draw, embed, places
from linattn_ref.models.causal_recurrent import State, init_state, read, step
from linattn_ref.nn import affine, dropout, embedding, layer_norm, positions
from linattn_ref.op import Array, Float, Int, Integers, Of, op

__all__ = ["backward", "forward"]
__all__ += ["Gradients", "Model", "Params", "Saved", "State", "draw", "embed", "init_state", "places", "read", "step"]


class Saved(NamedTuple):
    head: Of[affine.Saved, "E S"]
    embedding: embedding.Saved
    positions: positions.Saved | None
    drop: dropout.Saved
    blocks: tuple[Any, ...]
    norm: layer_norm.Saved
    backward: Callable[..., Any]  # the blocks'


class Gradients(NamedTuple):
    tokens: None
    params: Params


def look(tokens: Any, params: Any, model: Any, rng: Any = None) -> None:
    causal_network.look(tokens, params, model)
    dropout.check_options(model.dropout, rng, "model.dropout")


@op(look=look, values=check_tokens)
def forward(
    tokens: Int[Integers, "B N"], params: Params, model: Model, *, rng: np.random.Generator | None = None
) -> tuple[Array, Saved]:
    """Equations (1)-(3).

    Parameters
    ----------
    tokens : ndarray of int ``(B, N)``
    params : Params
    model : Model
    rng : numpy.random.Generator, optional
        Draws what ``model.dropout`` leaves out; without it nothing is.

    Returns
    -------
    scores : ndarray ``(B, N, V)``
        Scores of the token that follows each.
    saved : Saved
    """
    x, embedded = embedding.forward(tokens, params.embedding)  # (1)  (B, N, E)
    placed, blocks = None, []
    if params.positions is not None:
        x, placed = positions.forward(x, params.positions)  # (1)
    elif model.sinusoids is not None:
        x = positions.beside(x, model.sinusoids)  # (1)
    x, drop = dropout.forward(x, p=model.dropout, rng=rng)
    options = {"heads": model.heads, "activation": model.activation, "dropout": model.dropout, "rng": rng}
    for one in params.blocks:
        x, saved = model.block.forward(x, one, model.inside, **options)  # (2)
        blocks.append(saved)
    x, norm = layer_norm.forward(x, params.norm)  # (3)
    scores, head = affine.forward(x, params.head)  # (3)  (B, N, V)
    return scores, Saved(head, embedded, placed, drop, tuple(blocks), norm, model.block.backward)


@op
def backward(d_scores: Float[Array, "... S"], saved: Saved) -> Gradients:
    """Back through (3), (2) and (1)."""
    d_x, head = affine.backward(d_scores, saved.head)  # (4)
    d_x, norm = layer_norm.backward(d_x, saved.norm)  # (4)
    placed, blocks = None, []
    for one in reversed(saved.blocks):
        d_x, gradient = saved.backward(d_x, one)  # (5)
        blocks.append(gradient)
    d_x = dropout.backward(d_x, saved.drop).x
    if saved.positions is not None:
        d_x, placed = positions.backward(d_x, saved.positions)  # (6)
    else:
        d_x = d_x[..., : saved.embedding.params.table.shape[1]]  # (6): the other columns are constants
    _, embedded = embedding.backward(d_x, saved.embedding)  # (6)
    return Gradients(None, Params(embedded, placed, tuple(reversed(blocks)), norm, head))
