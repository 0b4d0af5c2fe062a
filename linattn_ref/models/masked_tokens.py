"""Masked tokens: an encoder reads a text with some tokens hidden, and predicts what stood there.

    x = encoder(tokens)                                      (1)  (B, N, E)
    h_m = norm(gelu(x_m W + b))   for each chosen place m    (2)  (places, E)
    scores = h U + c                                         (3)  (places, V)

Scores are computed only where they count, at a seventh of the places as a rule, as ``V`` is large. ``U`` is a matrix
of its own, or the table of the embedding turned over, ``T^T``. Then the gradients of both uses are added:

    dT = dT of (1) + dU^T of (3)                             (4)

>>> from linattn_ref.attention import softmax
>>> from linattn_ref.nn import mechanism
>>> model, rng = encoder.Model(mechanism.of(softmax), heads=2), np.random.default_rng(0)
>>> below = encoder.draw(rng, tokens=5, places=16, width=8, hidden=16, layers=2)
>>> scores, saved = forward(np.array([[0, 3, 1]]), draw(below, rng), model, chosen=np.array([1]))
>>> scores.shape, backward(scores, saved).params.encoder.embedding.table.shape
((1, 5), (5, 8))

References
----------
Devlin et al. (2019), "BERT: pre-training of deep bidirectional transformers for language understanding", section 3.1,
task 1; the layer (2) and the tied table are in its code, ``get_masked_lm_output`` in run_pretraining.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.models import encoder
from linattn_ref.models.encoder import Model
from linattn_ref.nn import affine, gelu, layer_norm
from linattn_ref.op import Array, Bool, Float, Int, Integers, Of, op

__all__ = ["Gradients", "Params", "Saved", "backward", "draw", "forward"]


class Params(NamedTuple):
    encoder: Of[encoder.Params, "V E P T"]
    inner: Of[affine.Params, "E E"]
    norm: Of[layer_norm.Params, "E"]
    u: Float[Array, "E V"] | None  # None where it is the embedding's table turned over
    c: Float[Array, "V"]


class Saved(NamedTuple):
    outer: Of[affine.Saved, "E V"]
    encoder: encoder.Saved
    chosen: Integers  # (places,)
    inner: affine.Saved
    bend: gelu.Saved
    norm: layer_norm.Saved
    shape: tuple[int, ...]  # of x
    tied: bool


class Gradients(NamedTuple):
    tokens: None
    params: Params


def look(tokens: Any, params: Any, model: Any, chosen: Any, **more: Any) -> None:
    encoder.look(tokens, params.encoder, model, **more)


def check_values(tokens: Any, params: Any, chosen: Any, types: Any = None, **_: Any) -> None:
    encoder.check_values(tokens, params.encoder, types)
    if chosen.min() < 0 or chosen.max() >= tokens.size or (chosen[1:] <= chosen[:-1]).any():
        places = f"places from 0 to {tokens.size - 1}, each larger than the last"
        raise ValueError(f"chosen: expected {places}, got {chosen}")


@op(look=look, values=check_values)
def forward(
    tokens: Int[Integers, "B N"],
    params: Params,
    model: Model,
    *,
    chosen: Int[Integers, "K"],
    types: Int[Integers, "B N"] | None = None,
    key_mask: Bool[Array, "B N"] | None = None,
    rng: np.random.Generator | None = None,
) -> tuple[Array, Saved]:
    """Equations (1)-(3).

    Parameters
    ----------
    tokens : ndarray of int ``(B, N)``
    params : Params
    chosen : ndarray of int ``(places,)``
        Where scores are asked for, in ``tokens.ravel()``, in order: ``np.flatnonzero(hidden)``.
    model, types, key_mask, rng
        As in `encoder.forward`.

    Returns
    -------
    scores : ndarray ``(places, V)``
    saved : Saved
    """
    x, below = encoder.forward(tokens, params.encoder, model, types=types, key_mask=key_mask, rng=rng)  # (1)
    here = x.reshape(-1, x.shape[-1])[chosen]  # (places, E)
    a, inner = affine.forward(here, params.inner)  # (2)
    g, bend = gelu.forward(a)  # (2)
    h, norm = layer_norm.forward(g, params.norm, eps=model.eps)  # (2)
    u = params.encoder.embedding.table.T if params.u is None else params.u
    scores, outer = affine.forward(h, affine.Params(u, params.c))  # (3)  (places, V)
    return scores, Saved(outer, below, chosen, inner, bend, norm, x.shape, params.u is None)


@op
def backward(d_scores: Float[Array, "... V"], saved: Saved) -> Gradients:
    """Back through (3), (2) and (1)."""
    d_h, outer = affine.backward(d_scores, saved.outer)  # of (3)
    d_g, norm = layer_norm.backward(d_h, saved.norm)  # of (2)
    d_a = gelu.backward(d_g, saved.bend).x  # of (2)
    d_here, inner = affine.backward(d_a, saved.inner)  # of (2)
    d_x = np.zeros(saved.shape, d_here.dtype)  # (B, N, E)
    d_x.reshape(-1, d_x.shape[-1])[saved.chosen] = d_here
    _, below = encoder.backward(d_x, saved.encoder)  # of (1)
    if not saved.tied:
        return Gradients(None, Params(below, inner, norm, outer.w, outer.b))
    table = below.embedding.table + outer.w.T  # (4)
    tied = below._replace(embedding=below.embedding._replace(table=table))
    return Gradients(None, Params(tied, inner, norm, None, outer.b))


@op
def draw(below: encoder.Params, rng: np.random.Generator, *, tied: bool = True) -> Params:
    """A head to start from, over an encoder; see `affine.draw`."""
    table = below.embedding.table
    tokens, width = table.shape
    outer = affine.draw(width, tokens, rng, dtype=table.dtype)
    inner, norm = affine.draw(width, width, rng, dtype=table.dtype), layer_norm.draw(width, dtype=table.dtype)
    return Params(below, inner, norm, None if tied else outer.w, outer.b)
