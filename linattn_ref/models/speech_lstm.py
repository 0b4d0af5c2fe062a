"""Bidirectional LSTMs that hear, one upon the other: what transformers are compared with.

    x <- lstm_l(x)   for each layer l, x_0 = frames          (1)  (B, T, 2 H)
    scores = x U + c                                         (2)  (B, T, V), of the blank and each label

>>> params = draw(np.random.default_rng(0), inputs=6, labels=5, hidden=4, layers=3)
>>> scores, saved = forward(np.ones((1, 7, 6)), params)
>>> scores.shape, backward(scores, saved).params.head.w.shape
((1, 7, 5), (8, 5))

References
----------
Graves and Schmidhuber (2005), "Framewise phoneme classification with bidirectional LSTM and other neural network
architectures".
Graves, Fernández, Gomez and Schmidhuber (2006), "Connectionist temporal classification".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.models.speech import check_values
from linattn_ref.nn import affine, lstm
from linattn_ref.nn import dropout as dropouts
from linattn_ref.nn.lengths import Lengths
from linattn_ref.op import Array, Float, Int, Of, op

__all__ = ["Gradients", "Params", "Saved", "backward", "draw", "forward"]


class Params(NamedTuple):
    layers: tuple[lstm.Params, ...]
    head: Of[affine.Params, "Y V"]  # Y = 2 H


class Saved(NamedTuple):
    head: Of[affine.Saved, "Y V"]
    layers: tuple[tuple[lstm.Saved, dropouts.Saved], ...]


class Gradients(NamedTuple):
    frames: Float[Array, "B T F"]
    params: Params


def look(frames: Any, params: Any, dropout: Any, rng: Any, **_: Any) -> None:
    dropouts.check_options(dropout, rng, "dropout")
    x = frames
    for one in params.layers:
        lstm.forward.check(x, one)
        x = np.broadcast_to(frames[:1, :1, :1], (*frames.shape[:2], 2 * len(one.ahead.u)))  # a shape and a dtype
    affine.forward.check(x, params.head)


@op(look=look, values=check_values)
def forward(
    frames: Float[Array, "B T F"],
    params: Params,
    *,
    lengths: Int[Lengths, "B"] | None = None,
    dropout: float = 0.0,
    rng: np.random.Generator | None = None,
) -> tuple[Array, Saved]:
    """Equations (1) and (2); arguments as in `speech.forward`. ``dropout`` is of what each layer returns."""
    x, layers = frames, []
    for one in params.layers:
        x, saved = lstm.forward(x, one, lengths=lengths)  # (1)  (B, T, 2 H)
        x, drop = dropouts.forward(x, p=dropout, rng=rng)
        layers.append((saved, drop))
    scores, head = affine.forward(x, params.head)  # (2)  (B, T, V)
    return scores, Saved(head, tuple(layers))


@op
def backward(d_scores: Float[Array, "... V"], saved: Saved) -> Gradients:
    """Back through (2) and (1)."""
    d_x, head = affine.backward(d_scores, saved.head)  # of (2)
    layers = []
    for one, drop in reversed(saved.layers):
        d_x, gradient, *_ = lstm.backward(dropouts.backward(d_x, drop).x, one)  # of (1)
        layers.append(gradient)
    return Gradients(d_x, Params(tuple(reversed(layers)), head))


@op
def draw(
    rng: np.random.Generator, *, inputs: int, labels: int, hidden: int, layers: int, dtype: Any = np.float64
) -> Params:
    """Parameters to start from: ``F`` inputs, ``V`` labels with the blank, ``H`` units in each direction."""
    widths = [inputs] + [2 * hidden] * (layers - 1)
    return Params(
        tuple(lstm.draw(width, hidden, rng, dtype=dtype) for width in widths),
        affine.draw(2 * hidden, labels, rng, dtype=dtype),
    )
