"""A bidirectional transformer for speech recognition: the scores of a frame of sound depend on all others.

    x = frames W + b + sinusoids                             (1)  (B, T, E)
    x <- block_l(x)   for each block l                       (2)  pre-norm
    scores = norm(x) U + c                                   (3)  (B, T, V), of the blank and each label

for `linattn_ref.nn.ctc`. No mask keeps a frame from seeing later ones: the whole utterance is there before anything is
said of it. The gradient is that of the parts, last to first: of (3), from ``dscores``, (4); of the blocks (5); of (1)
(6). `speech_lstm` has LSTMs in the place of the blocks.

>>> from linattn_ref.attention import softmax
>>> from linattn_ref.nn import mechanism
>>> model = Model(mechanism.of(softmax), heads=2)
>>> params = draw(np.random.default_rng(0), inputs=6, labels=5, width=8, hidden=16, layers=2)
>>> scores, saved = forward(np.ones((1, 7, 6)), params, model)
>>> scores.shape, backward(scores, saved).params.stem.w.shape
((1, 7, 5), (6, 8))

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", section 4.3.
Graves, Fernández, Gomez and Schmidhuber (2006), "Connectionist temporal classification".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.parts.masks import shown
from linattn_ref.nn import affine, dropout, layer_norm, positions, pre_norm
from linattn_ref.nn.lengths import Lengths, check_lengths
from linattn_ref.nn.mechanism import Mechanism
from linattn_ref.op import Array, Bool, Float, Int, Of, op
from linattn_ref.op.backends import JIT

__all__ = ["Gradients", "Model", "Params", "Saved", "backward", "draw", "forward"]


class Model(NamedTuple):
    """What is not learned."""

    mechanism: Mechanism  # of all blocks
    heads: int
    kernels: Any = JIT  # the backend, or its name; a mechanism may have one of its own, as an option
    dropout: float = 0.0  # the probability that a number of (1), or one that a layer adds, is left out


class Params(NamedTuple):
    stem: Of[affine.Params, "F E"]
    blocks: tuple[Any, ...]  # `block.Params`
    norm: Of[layer_norm.Params, "E"]
    head: Of[affine.Params, "E V"]


class Saved(NamedTuple):
    head: Of[affine.Saved, "E V"]
    stem: Of[affine.Saved, "F E"]
    drop: dropout.Saved
    blocks: tuple[Any, ...]
    norm: layer_norm.Saved
    key_mask: Bool[Array, "B T"] | None  # False behind the last frame


class Gradients(NamedTuple):
    frames: Float[Array, "B T F"]
    params: Params


def look(frames: Any, params: Any, model: Any, lengths: Any = None, rng: Any = None) -> None:
    dropout.check_options(model.dropout, rng, "model.dropout")
    row = np.broadcast_to(params.norm.gain[:1, None], (*frames.shape[:2], len(params.norm.gain)))  # a shape and a dtype
    for one in params.blocks:
        pre_norm.forward.check(row, one, model.mechanism, heads=model.heads)


def check_values(frames: Any, lengths: Any = None, **_: Any) -> None:
    check_lengths("lengths", lengths, frames.shape[1])


@op(look=look, values=check_values)
def forward(
    frames: Float[Array, "B T F"],
    params: Params,
    model: Model,
    *,
    lengths: Int[Lengths, "B"] | None = None,
    rng: np.random.Generator | None = None,
) -> tuple[Array, Saved]:
    """Equations (1)-(3).

    Parameters
    ----------
    frames : ndarray ``(B, T, F)``
    params : Params
    model : Model
    lengths : ndarray of int ``(B,)``, optional
        How many frames each utterance has; what lies behind counts as 0 and is heard by nobody, and its own scores are
        of no use.
    rng : numpy.random.Generator, optional
        Draws what ``model.dropout`` leaves out; without it nothing is.

    Returns
    -------
    scores : ndarray ``(B, T, V)``
    saved : Saved
    """
    t = frames.shape[1]
    key_mask: Any = None if lengths is None else np.arange(t) < lengths[:, None]  # (B, T)
    x, stem = affine.forward(shown(frames, key_mask), params.stem)  # (1)  (B, T, E)
    x, blocks = x + positions.sinusoidal(t, x.shape[-1], dtype=x.dtype), []  # (1)
    x, drop = dropout.forward(x, p=model.dropout, rng=rng)
    options = {"heads": model.heads, "key_mask": key_mask, "dropout": model.dropout, "rng": rng}
    for one in params.blocks:
        x, saved = pre_norm.forward(x, one, model.mechanism, **options)  # (2)
        blocks.append(saved)
    x, norm = layer_norm.forward(x, params.norm)  # (3)
    scores, head = affine.forward(x, params.head)  # (3)  (B, T, V)
    return scores, Saved(head, stem, drop, tuple(blocks), norm, key_mask)


@op
def backward(d_scores: Float[Array, "... V"], saved: Saved) -> Gradients:
    """Back through (3), (2) and (1)."""
    d_x, head = affine.backward(d_scores, saved.head)  # (4)
    d_x, norm = layer_norm.backward(d_x, saved.norm)  # (4)
    blocks = []
    for one in reversed(saved.blocks):
        d_x, gradient = pre_norm.backward(d_x, one)  # (5)
        blocks.append(gradient)
    d_x = dropout.backward(d_x, saved.drop).x
    d_frames, stem = affine.backward(d_x, saved.stem)  # (6)
    return Gradients(shown(d_frames, saved.key_mask), Params(stem, tuple(reversed(blocks)), norm, head))


@op
def draw(
    rng: np.random.Generator,
    *,
    inputs: int,
    labels: int,
    width: int,
    hidden: int,
    layers: int,
    reads: int = 3,
    dtype: Any = np.float64,
) -> Params:
    """Parameters to start from.

    Parameters
    ----------
    rng : numpy.random.Generator
    inputs, labels : int
        ``F``, and ``V`` with the blank.
    width, hidden, layers : int
        ``E``, the width within the feed-forward layers, the number of blocks.
    reads : int
        Of the mechanism: `mechanism.Mechanism.reads`.
    dtype
        float32 or float64.
    """
    return Params(
        affine.draw(inputs, width, rng, dtype=dtype),
        tuple(pre_norm.draw(width, hidden, rng, reads=reads, dtype=dtype) for _ in range(layers)),
        layer_norm.draw(width, dtype=dtype),
        affine.draw(width, labels, rng, dtype=dtype),
    )
