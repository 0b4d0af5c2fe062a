"""Bidirectional LSTMs that hear, one upon the other: what transformers are compared with.

    x <- lstm_l(x)   for each layer l, x_0 = frames          (1)  (B, T, 2 H)
    scores = x U + c                                         (2)  (B, T, V), of the blank and each label

>>> params = draw(np.random.default_rng(0), inputs=6, labels=5, hidden=4, layers=3)
>>> scores, saved = forward(np.ones((1, 7, 6)), params, kernels=reference)
>>> scores.shape, backward(scores, saved).params.head.w.shape
((1, 7, 5), (8, 5))

References
----------
Graves and Schmidhuber (2005), "Framewise phoneme classification with bidirectional LSTM"; Graves et al. (2006).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.kernels import reference
from linattn_ref.models.speech import check_frames
from linattn_ref.nn import affine, lstm
from linattn_ref.nn.buffers import Work, fresh
from linattn_ref.nn.lengths import Lengths

__all__ = ["Gradients", "Params", "Saved", "backward", "draw", "forward"]


@documented
class Params(NamedTuple):
    """What is learned."""

    layers: tuple[lstm.Params, ...]
    head: affine.Params  # (2 H, V)


@documented
class Saved(NamedTuple):
    """What the backward pass needs: what the layers do."""

    layers: tuple[lstm.Saved, ...]
    head: affine.Saved


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    frames: Array  # (B, T, F)
    params: Params


def check_forward(
    frames: Array, params: Params, *, lengths: Lengths | None = None, kernels: Any = reference, **_: Any
) -> None:
    """Arguments of :func:`forward`."""
    ahead = params.layers[0].ahead
    check_frames(frames, affine.Params(ahead.w, ahead.b), lengths)
    lstm.check_forward(frames, params.layers[0], lengths=lengths, kernels=kernels)


@door(check_forward)
def forward(
    frames: Array,
    params: Params,
    *,
    lengths: Lengths | None = None,
    kernels: Any = reference,
    work: Work = fresh,
) -> tuple[Array, Saved]:
    """Equations (1) and (2); arguments as in `speech.forward`, and ``kernels`` as in `linattn_ref.nn`."""
    x, layers = frames, []
    for one in params.layers:
        x, saved = lstm.forward.unchecked(x, one, lengths=lengths, kernels=kernels, work=work)  # (1)  (B, T, 2 H)
        layers.append(saved)
    scores, head = affine.forward.unchecked(x, params.head, work=work)  # (2)  (B, T, V)
    return scores, Saved(tuple(layers), head)


def check_backward(d_scores: Array, saved: Saved, **_: Any) -> None:
    """Shape and dtype of :func:`backward`."""
    affine.check_backward(d_scores, saved.head)


@door(check_backward)
def backward(d_scores: Array, saved: Saved, *, into: Params | None = None, work: Work = fresh) -> Gradients:
    """Back through (2) and (1)."""
    of_layers, of_head = into or ((None,) * len(saved.layers), None)
    d_x, head = affine.backward.unchecked(d_scores, saved.head, into=of_head, work=work)  # of (2)
    layers = []
    for one, of_one in zip(reversed(saved.layers), reversed(of_layers), strict=True):
        d_x, gradient = lstm.backward.unchecked(d_x, one, into=of_one, work=work)  # of (1)
        layers.append(gradient)
    return Gradients(d_x, Params(tuple(reversed(layers)), head))


@plain_numbers
def draw(
    rng: np.random.Generator, *, inputs: int, labels: int, hidden: int, layers: int, dtype: Any = np.float64
) -> Params:
    """Parameters to start from: ``F`` inputs, ``V`` labels with the blank, ``H`` units in each direction."""
    widths = [inputs] + [2 * hidden] * (layers - 1)
    return Params(
        tuple(lstm.draw(width, hidden, rng, dtype=dtype) for width in widths),
        affine.draw(2 * hidden, labels, rng, dtype=dtype),
    )
