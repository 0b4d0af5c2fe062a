"""Masked tokens: an encoder reads a text with some tokens hidden, and says at these places what stood there.

    x = encoder(tokens)                                      (1)  (B, N, E)
    h_m = norm(gelu(x_m W + b))   for each chosen place m    (2)  (places, E)
    scores = h U + c                                         (3)  (places, V)

The scores are had where they count only: a seventh of the places, as a rule, and ``V`` is large. ``U`` is a matrix of
its own, or the table of the embedding turned over, ``T^T``: then the gradient of (3) is added to that of (1), into the
same array.

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

from linattn_ref.attention.arguments import Array, Mask, check_shape
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.rooms import room_of
from linattn_ref.models import encoder
from linattn_ref.models.encoder import Model, Tokens
from linattn_ref.nn import affine, gelu, layer_norm
from linattn_ref.nn.buffers import Work, fresh

__all__ = ["Gradients", "Params", "Saved", "backward", "draw", "forward"]


@documented
class Params(NamedTuple):
    """What is learned."""

    encoder: encoder.Params
    inner: affine.Params  # (E, E)
    norm: layer_norm.Params  # (E,)
    u: Array | None  # (E, V), or None where it is the embedding's table turned over
    c: Array  # (V,)


@documented
class Saved(NamedTuple):
    """What the backward pass needs: what the layers do."""

    encoder: encoder.Saved
    chosen: Tokens  # (places,)
    inner: affine.Saved
    bend: gelu.Saved
    norm: layer_norm.Saved
    outer: affine.Saved
    shape: tuple[int, ...]  # of x
    tied: bool


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    tokens: None
    params: Params


def check_forward(tokens: Tokens, params: Params, model: Model, *, chosen: Tokens, **more: Any) -> None:
    """Arguments of :func:`forward`."""
    encoder.check_forward(tokens, params.encoder, model, **more)
    table = params.encoder.embedding.table
    affine.check_forward(table, params.inner)
    affine.check_forward(table, _outer(params))
    check_shape("params.c", params.c, (len(table),), "(V,)")
    if not (isinstance(chosen, np.ndarray) and chosen.dtype.kind in "iu" and chosen.ndim == 1 and chosen.size):
        got = getattr(chosen, "shape", type(chosen).__name__)
        raise TypeError(f"chosen: expected an array (places,) of at least one integer, got {got}")
    if chosen.min() < 0 or chosen.max() >= tokens.size or (chosen[1:] <= chosen[:-1]).any():
        raise ValueError(f"chosen: expected places from 0 to {tokens.size - 1}, each larger than the last")


@door(check_forward)
def forward(
    tokens: Tokens,
    params: Params,
    model: Model,
    *,
    chosen: Tokens,
    types: Tokens | None = None,
    key_mask: Mask | None = None,
    rng: np.random.Generator | None = None,
    work: Work = fresh,
) -> tuple[Array, Saved]:
    """Equations (1)-(3).

    Parameters
    ----------
    tokens : ndarray of int ``(B, N)``
    params : Params
    chosen : ndarray of int ``(places,)``
        Where scores are asked for, in ``tokens.ravel()``, in order: ``np.flatnonzero(hidden)``.
    model, types, key_mask, rng, work
        As in `encoder.forward`.

    Returns
    -------
    scores : ndarray ``(places, V)``
    saved : Saved
    """
    x, below = encoder.forward.unchecked(
        tokens, params.encoder, model, types=types, key_mask=key_mask, rng=rng, work=work
    )  # (1)  (B, N, E)
    here = x.reshape(-1, x.shape[-1])[chosen]  # (places, E)
    kernels = room_of(model.kernels)
    a, inner = affine.forward.unchecked(here, params.inner, work=work)  # (2)
    g, bend = gelu.forward.unchecked(a, spend=True, kernels=kernels, work=work)
    h, norm = layer_norm.forward.unchecked(g, params.norm, eps=model.eps, kernels=kernels, work=work)
    scores, outer = affine.forward.unchecked(h, _outer(params), work=work)  # (3)  (places, V)
    return scores, Saved(below, chosen, inner, bend, norm, outer, x.shape, params.u is None)


def check_backward(d_scores: Array, saved: Saved, **_: Any) -> None:
    """Shape and dtype of :func:`backward`."""
    affine.check_backward(d_scores, saved.outer)


@door(check_backward)
def backward(d_scores: Array, saved: Saved, *, into: Params | None = None, work: Work = fresh) -> Gradients:
    """Back through (3), (2) and (1)."""
    of_encoder, of_inner, of_norm = (None, None, None) if into is None else into[:3]
    of_outer = None if into is None else _outer(into)
    d_h, outer = affine.backward.unchecked(d_scores, saved.outer, into=of_outer, work=work)  # of (3)
    d_g, norm = layer_norm.backward.unchecked(d_h, saved.norm, into=of_norm, work=work)
    d_a = gelu.backward.unchecked(d_g, saved.bend, work=work).x
    d_here, inner = affine.backward.unchecked(d_a, saved.inner, into=of_inner, work=work)  # of (2)
    d_x = work(saved.shape, d_here.dtype)  # (B, N, E)
    d_x[...] = 0
    d_x.reshape(-1, d_x.shape[-1])[saved.chosen] = d_here
    _, below = encoder.backward.unchecked(d_x, saved.encoder, into=of_encoder, work=work)  # of (1)
    if saved.tied and into is None:
        below.embedding.table[...] += outer.w.T  # with `into`, it has been added to the same array already
    return Gradients(None, Params(below, inner, norm, None if saved.tied else outer.w, outer.b))


def _outer(params: Params) -> affine.Params:
    """``U`` and ``c``."""
    u = params.encoder.embedding.table.T if params.u is None else params.u
    return affine.Params(u, params.c)


def draw(below: encoder.Params, rng: np.random.Generator, *, tied: bool = True) -> Params:
    """A head to start from, over an encoder; see `affine.draw`."""
    table = below.embedding.table
    tokens, width = table.shape
    outer = affine.draw(width, tokens, rng, dtype=table.dtype)
    inner, norm = affine.draw(width, width, rng, dtype=table.dtype), layer_norm.draw(width, dtype=table.dtype)
    return Params(below, inner, norm, None if tied else outer.w, outer.b)
