"""A bidirectional transformer that hears: what it says of a frame of sound depends on all others.

    x = frames W + b + sinusoids                             (1)  (B, T, E)
    x <- block_l(x)   for each block l                       (2)  pre-norm
    scores = norm(x) U + c                                   (3)  (B, T, V), of the blank and each label

for `linattn_ref.nn.ctc`. No mask keeps a frame from seeing later ones: the whole utterance is there before anything is
said of it. The gradient is that of the parts, last to first. `speech_lstm` has LSTMs in the place of the blocks.

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
Graves et al. (2006), "Connectionist temporal classification".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array, check_array
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.attention.rooms import room_of
from linattn_ref.models.encoder import JIT
from linattn_ref.nn import affine, block, gelu, layer_norm, multi_head, positions, pre_norm
from linattn_ref.nn.block import EPS
from linattn_ref.nn.buffers import Work, fresh
from linattn_ref.nn.lengths import Lengths, check_lengths, lengths_or_all
from linattn_ref.nn.mechanism import Mechanism

__all__ = ["Gradients", "Model", "Params", "Saved", "backward", "draw", "forward"]


@documented
class Model(NamedTuple):
    """What is not learned."""

    mechanism: Mechanism  # of all blocks
    heads: int
    kernels: Any = JIT  # the room of the layers' loops, or its name; the mechanism's is an option of its own


@documented
class Params(NamedTuple):
    """What is learned."""

    stem: affine.Params  # (F, E)
    blocks: tuple[block.Params, ...]
    norm: layer_norm.Params  # (E,)
    head: affine.Params  # (E, V)


@documented
class Saved(NamedTuple):
    """What the backward pass needs: what the layers do."""

    stem: affine.Saved
    blocks: tuple[block.Saved, ...]
    norm: layer_norm.Saved
    head: affine.Saved


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    frames: Array  # (B, T, F)
    params: Params


def check_forward(frames: Array, params: Params, model: Model, *, lengths: Lengths | None = None, **_: Any) -> None:
    """Arguments of :func:`forward`."""
    if not isinstance(model, Model):
        raise TypeError(f"model: expected a speech.Model, got {model!r}")
    check_frames(frames, params.stem, lengths)
    width = np.broadcast_to(params.head.w[:, :1].T, (*frames.shape[:2], len(params.head.w)))  # a row of the network's
    affine.check_forward(width, params.head)
    for one in params.blocks:
        multi_head.check_params(width, one.attention, model.mechanism, model.heads)


def check_frames(frames: Array, stem: affine.Params, lengths: Lengths | None) -> None:
    """What such networks hear."""
    check_array("frames", frames, ndim=3)
    if frames.ndim != 3:
        raise ValueError(f"frames: expected shape (B, T, F), got {frames.shape}")
    affine.check_forward(frames, stem)
    check_lengths("lengths", lengths, frames.shape[:1], frames.shape[1])


@door(check_forward)
def forward(
    frames: Array, params: Params, model: Model, *, lengths: Lengths | None = None, work: Work = fresh
) -> tuple[Array, Saved]:
    """Equations (1)-(3).

    Parameters
    ----------
    frames : ndarray ``(B, T, F)``
    params : Params
    model : Model
    lengths : ndarray of int ``(B,)``, optional
        How many frames each utterance has; what lies behind is heard by nobody, and its own scores are of no use.
    work
        See `linattn_ref.nn`.

    Returns
    -------
    scores : ndarray ``(B, T, V)``
    saved : Saved
    """
    kernels, (b, t, _) = room_of(model.kernels), frames.shape
    key_mask = None if lengths is None else np.arange(t) < lengths_or_all(lengths, (b,), t)[:, None]  # (B, T)
    x, stem = affine.forward.unchecked(frames, params.stem, work=work)  # (1)  (B, T, E)
    x += positions.sinusoidal(t, x.shape[-1], dtype=x.dtype)  # (1)
    blocks = []
    for one in params.blocks:
        x, saved = pre_norm.forward.unchecked(
            x, one, model.mechanism, heads=model.heads, activation=gelu, key_mask=key_mask, kernels=kernels, work=work
        )  # (2)
        blocks.append(saved)
    x, norm = layer_norm.forward.unchecked(x, params.norm, eps=EPS, kernels=kernels, work=work)  # (3)
    scores, head = affine.forward.unchecked(x, params.head, work=work)  # (3)  (B, T, V)
    return scores, Saved(stem, tuple(blocks), norm, head)


def check_backward(d_scores: Array, saved: Saved, **_: Any) -> None:
    """Shape and dtype of :func:`backward`."""
    affine.check_backward(d_scores, saved.head)


@door(check_backward)
def backward(d_scores: Array, saved: Saved, *, into: Params | None = None, work: Work = fresh) -> Gradients:
    """Back through (3), (2) and (1)."""
    of_stem, of_blocks, of_norm, of_head = into or (None, (None,) * len(saved.blocks), None, None)
    d_x, head = affine.backward.unchecked(d_scores, saved.head, into=of_head, work=work)  # of (3)
    d_x, norm = layer_norm.backward.unchecked(d_x, saved.norm, into=of_norm, work=work)  # of (3)
    blocks = []
    for one, of_one in zip(reversed(saved.blocks), reversed(of_blocks), strict=True):
        d_x, gradient = pre_norm.backward.unchecked(d_x, one, into=of_one, work=work)  # of (2)
        blocks.append(gradient)
    d_frames, stem = affine.backward.unchecked(d_x, saved.stem, into=of_stem, work=work)  # of (1)
    return Gradients(d_frames, Params(stem, tuple(reversed(blocks)), norm, head))


@plain_numbers
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
        tuple(block.draw(width, hidden, rng, reads=reads, dtype=dtype) for _ in range(layers)),
        layer_norm.draw(width, dtype=dtype),
        affine.draw(width, labels, rng, dtype=dtype),
    )
