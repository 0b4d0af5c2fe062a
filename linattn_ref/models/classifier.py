"""A class for a whole text: an encoder, one row of what it makes of the tokens, and an affine layer.

    x = encoder(tokens)                                      (1)  (B, N, E)
    y = the mean of the rows that the mask keeps, or the first        (2)  (B, E)
    z = tanh(y W_p + b_p), or y itself                       (3)  (B, E)
    scores = z W + b                                         (4)  (B, classes)

BERT has (3), its *pooler*, after the first row. The gradient is that of the parts, last to first; that of (3) is
``dz (1 - z^2)`` at ``y W_p + b_p``.

>>> from linattn_ref.attention import softmax
>>> from linattn_ref.nn import mechanism
>>> model, rng = encoder.Model(mechanism.of(softmax), heads=2), np.random.default_rng(0)
>>> below = encoder.draw(rng, tokens=5, places=16, width=8, hidden=16, layers=2)
>>> scores, saved = forward(np.array([[0, 3, 1]]), draw(below, 3, rng), model)
>>> scores.shape, backward(scores, saved).params.head.w.shape
((1, 3), (8, 3))

References
----------
Devlin et al. (2019), "BERT: pre-training of deep bidirectional transformers for language understanding", section 4.1;
the pooler is in its code, ``BertModel`` in modeling.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array, Mask
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.models import encoder
from linattn_ref.models.encoder import Model, Tokens
from linattn_ref.nn import affine, dropout, pooling
from linattn_ref.nn.buffers import Work, fresh

__all__ = ["Gradients", "Params", "Saved", "backward", "draw", "forward"]


@documented
class Params(NamedTuple):
    """What is learned."""

    encoder: encoder.Params
    head: affine.Params  # (E, classes)
    pooler: affine.Params | None = None  # (E, E), (E,)


@documented
class Saved(NamedTuple):
    """What the backward pass needs: what the layers do."""

    encoder: encoder.Saved
    pooling: pooling.Saved
    pooler: affine.Saved | None
    drop: dropout.Saved  # of z
    head: affine.Saved
    z: Array  # (B, E)


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
    pool: pooling.Pool = "mean",
    key_mask: Mask | None = None,
    **more: Any,
) -> None:
    """Arguments of :func:`forward`."""
    encoder.check_forward(tokens, params.encoder, model, key_mask=key_mask, **more)
    table = params.encoder.embedding.table
    affine.check_forward(table, params.head)
    if params.pooler is not None:
        affine.check_forward(table, params.pooler)
    pooling.check_forward(np.broadcast_to(table[:1], (*tokens.shape, table.shape[1])), pool=pool, key_mask=key_mask)


@door(check_forward)
def forward(
    tokens: Tokens,
    params: Params,
    model: Model,
    *,
    pool: pooling.Pool = "mean",
    types: Tokens | None = None,
    key_mask: Mask | None = None,
    rng: np.random.Generator | None = None,
    work: Work = fresh,
) -> tuple[Array, Saved]:
    """Equations (1)-(4).

    Parameters
    ----------
    tokens : ndarray of int ``(B, N)``
    params : Params
    pool : {"mean", "first"}
    model, types, key_mask, rng, work
        As in `encoder.forward`.

    Returns
    -------
    scores : ndarray ``(B, classes)``
    saved : Saved
    """
    x, below = encoder.forward.unchecked(
        tokens, params.encoder, model, types=types, key_mask=key_mask, rng=rng, work=work
    )  # (1)  (B, N, E)
    y, pooled = pooling.forward.unchecked(x, pool=pool, key_mask=key_mask, work=work)  # (2)  (B, E)
    z, pooler = y, None
    if params.pooler is not None:
        a, pooler = affine.forward.unchecked(y, params.pooler, work=work)  # (3)
        z = np.tanh(a, out=a)  # (3)  (B, E)
    kept, drop = dropout.forward.unchecked(z, p=model.dropout, rng=rng, work=work)
    scores, head = affine.forward.unchecked(kept, params.head, work=work)  # (4)  (B, classes)
    return scores, Saved(below, pooled, pooler, drop, head, z)


def check_backward(d_scores: Array, saved: Saved, **_: Any) -> None:
    """Shape and dtype of :func:`backward`."""
    affine.check_backward(d_scores, saved.head)


@door(check_backward)
def backward(d_scores: Array, saved: Saved, *, into: Params | None = None, work: Work = fresh) -> Gradients:
    """Back through (4), (3), (2) and (1)."""
    of_encoder, of_head, of_pooler = into or (None, None, None)
    d_kept, head = affine.backward.unchecked(d_scores, saved.head, into=of_head, work=work)  # of (4)
    d_y, pooler = dropout.backward.unchecked(d_kept, saved.drop, work=work).x, None
    if saved.pooler is not None:
        d_a = d_y * (1 - saved.z * saved.z)  # of (3)
        d_y, pooler = affine.backward.unchecked(d_a, saved.pooler, into=of_pooler, work=work)  # of (3)
    d_x = pooling.backward.unchecked(d_y, saved.pooling, work=work).x  # of (2)
    _, below = encoder.backward.unchecked(d_x, saved.encoder, into=of_encoder, work=work)  # of (1)
    return Gradients(None, Params(below, head, pooler))


@plain_numbers
def draw(
    below: encoder.Params, classes: int, rng: np.random.Generator, *, pooler: affine.Params | None = None
) -> Params:
    """A head to start from, over an encoder that is drawn too or was pretrained; see `affine.draw`.

    ``pooler`` is a pretrained one (`bert.pooler`), or drawn like the head.
    """
    table = below.embedding.table
    return Params(below, affine.draw(table.shape[1], classes, rng, dtype=table.dtype), pooler)
