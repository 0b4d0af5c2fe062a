"""A class for a whole text: an encoder, one row of what it makes of the tokens, and an affine layer.

    x = encoder(tokens)                                      (1)  (B, N, E)
    y = the mean of the rows that the mask keeps, or the first        (2)  (B, E)
    z = tanh(y W_p + b_p), or y itself                       (3)  (B, E)
    scores = z W + b                                         (4)  (B, classes)

BERT has (3), its *pooler*, after the first row. The gradient is that of the parts, last to first; at ``a``, the
argument of (3),

    da = dz (1 - z^2)                                        (5)

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

from linattn_ref.models import encoder
from linattn_ref.models.encoder import Model
from linattn_ref.nn import affine, dropout, pooling
from linattn_ref.op import Array, Bool, Float, Int, Integers, Of, op

__all__ = ["Gradients", "Params", "Saved", "backward", "draw", "forward"]


class Params(NamedTuple):
    encoder: Of[encoder.Params, "V E P T"]
    head: Of[affine.Params, "E C"]  # C classes
    pooler: Of[affine.Params, "E E"] | None = None


class Saved(NamedTuple):
    head: Of[affine.Saved, "E C"]
    encoder: encoder.Saved
    pooling: pooling.Saved
    pooler: affine.Saved | None
    drop: dropout.Saved  # of z
    z: Array  # (B, E)


class Gradients(NamedTuple):
    tokens: None
    params: Params


def look(tokens: Any, params: Any, model: Any, pool: Any, **more: Any) -> None:
    pooling.look(pool)
    encoder.look(tokens, params.encoder, model, **more)


def check_values(
    tokens: Any, params: Any, pool: Any = "mean", key_mask: Any = None, types: Any = None, **_: Any
) -> None:
    encoder.check_values(tokens, params.encoder, types)
    pooling.check_values(key_mask, pool)


@op(look=look, values=check_values)
def forward(
    tokens: Int[Integers, "B N"],
    params: Params,
    model: Model,
    *,
    pool: pooling.Pool = "mean",
    types: Int[Integers, "B N"] | None = None,
    key_mask: Bool[Array, "B N"] | None = None,
    rng: np.random.Generator | None = None,
) -> tuple[Array, Saved]:
    """Equations (1)-(4).

    Parameters
    ----------
    tokens : ndarray of int ``(B, N)``
    params : Params
    pool : {"mean", "first"}
    model, types, key_mask, rng
        As in `encoder.forward`.

    Returns
    -------
    scores : ndarray ``(B, classes)``
    saved : Saved
    """
    x, below = encoder.forward(tokens, params.encoder, model, types=types, key_mask=key_mask, rng=rng)  # (1)
    y, pooled = pooling.forward(x, pool=pool, key_mask=key_mask)  # (2)  (B, E)
    z, pooler = y, None
    if params.pooler is not None:
        a, pooler = affine.forward(y, params.pooler)  # (3)
        z = np.tanh(a)  # (3)  (B, E)
    kept, drop = dropout.forward(z, p=model.dropout, rng=rng)
    scores, head = affine.forward(kept, params.head)  # (4)  (B, classes)
    return scores, Saved(head, below, pooled, pooler, drop, z)


@op
def backward(d_scores: Float[Array, "... C"], saved: Saved) -> Gradients:
    """Back through (4), (3), (2) and (1)."""
    d_kept, head = affine.backward(d_scores, saved.head)  # of (4)
    d_y, pooler = dropout.backward(d_kept, saved.drop).x, None
    if saved.pooler is not None:
        d_a = d_y * (1 - saved.z * saved.z)  # (5)
        d_y, pooler = affine.backward(d_a, saved.pooler)  # of (3)
    d_x = pooling.backward(d_y, saved.pooling).x  # of (2)
    _, below = encoder.backward(d_x, saved.encoder)  # of (1)
    return Gradients(None, Params(below, head, pooler))


@op
def draw(
    below: encoder.Params, classes: int, rng: np.random.Generator, *, pooler: affine.Params | None = None
) -> Params:
    """A head to start from, over an encoder that is drawn too or was pretrained; see `affine.draw`.

    ``pooler``: a pretrained one (`bert.pooler`), or one drawn by `affine.draw`; without it, ``z = y``.
    """
    table = below.embedding.table
    return Params(below, affine.draw(table.shape[1], classes, rng, dtype=table.dtype), pooler)
