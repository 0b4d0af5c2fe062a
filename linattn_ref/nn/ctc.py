"""Connectionist temporal classification (CTC): a loss for labels of which nobody says when they come.

A network scores ``V`` symbols in each of ``T`` frames, symbol 0 being the *blank*. A path is a symbol a frame; what it
says is found by writing a run of the same symbol once and leaving out the blanks, so that both ``a a - b`` and
``- a b b`` say ``a b``. The probability of labels is that of all paths that say them:

    y_t = softmax(a_t)                                       (1)  (V,)
    p = sum of prod_t y_t(path_t), over all paths that say the labels                    (2)
    loss = mean over sequences of -log p / max(S, 1)         (3)  S: the number of labels

Such a path goes through the states ``l' = - l_1 - l_2 - ... l_S -``, ``2 S + 1`` of them, in this order. In each frame
it stays, goes on by one, or leaves out a blank between two labels that differ; it starts in one of the first two
states and ends in one of the last two. With ``r -> s`` for a step that is allowed,

    alpha_1(s) = y_1(l'_s) for the first two s,   alpha_t(s) = y_t(l'_s) sum_{r -> s} alpha_(t-1)(r)           (4)
    beta_T(s)  = 1 for the last two s,            beta_t(s)  = sum_{s -> r} beta_(t+1)(r) y_(t+1)(l'_r)        (5)
    p = sum_s alpha_t(s) beta_t(s),   at any t               (6)

``alpha`` sums over all beginnings of paths up to frame ``t``, ``beta`` over all ends after it; (2) has exponentially
many terms, (6) takes ``T (2 S + 1)`` steps. All is done with logarithms, since these products are far too small
for a floating-point number.

The gradient, by hand
---------------------
A path that is in state ``s`` at ``t`` has ``y_t(l'_s)`` as a factor, once. So ``dp / dlog y_t(c)`` is the sum of all
paths that say ``c`` at ``t``, and over ``p`` it is the share of them, how much of frame ``t`` belongs to ``c``:

    g_t(c) = sum over s with l'_s = c of alpha_t(s) beta_t(s) / p                        (7)

These sum to 1 over ``c`` by (6). From (1), ``dlog y_t(c) / da_t(k) = [c = k] - y_t(k)``, so

    da_t(k) = -sum_c g_t(c) ([c = k] - y_t(k)) = y_t(k) - g_t(k)                         (8)

times the gradient of the loss and ``1 / (B max(S, 1))``: what is expected less what is meant, as in cross-entropy, with
``g`` in the place of a target. As there, it is made forward, where ``alpha`` and ``beta`` are at hand. The plain text
of (1) and (4) to (8) is `linattn_ref.kernels.reference.ctc`.

Labels that no path says, because there are more of them than frames (counting a blank between two that are the same),
have ``p = 0``: the loss is infinite, or 0 with ``infinite_to_zero``. Nothing could make them likelier, and the gradient
is 0 either way.

>>> scores = np.log([[[0.4, 0.6], [0.6, 0.4]]])  # two frames, of blank and one label
>>> loss, saved = forward(scores, np.array([[1]]))  # the paths 1 1, 1 -, - 1
>>> round(float(np.exp(-loss)), 2), backward(1.0, saved).scores.round(3)
(0.76, array([[[ 0.189, -0.189],
        [ 0.126, -0.126]]]))

References
----------
Graves, Fernández, Gomez and Schmidhuber (2006), "Connectionist temporal classification": (4) is its (6) and (7), (5)
its (10) and (11) without the factor ``y_t``, (6) at the last frame its (8), and (8) its (16).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.attention.arguments import Array, check_array
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.rooms import check_kernels
from linattn_ref.kernels import reference
from linattn_ref.nn.buffers import Work, fresh
from linattn_ref.nn.lengths import Lengths, check_lengths, lengths_or_all

__all__ = ["BLANK", "Gradients", "Saved", "backward", "forward"]

BLANK = 0

Labels = NDArray[np.integer[Any]]


@documented
class Saved(NamedTuple):
    """What the backward pass needs."""

    d_scores: Array  # (..., T, V), (8) of (3)


@documented
class Gradients(NamedTuple):
    """Gradient of the input of ``forward``."""

    scores: Array  # (..., T, V)


def check_forward(
    scores: Array,
    targets: Labels,
    *,
    frames: Lengths | None = None,
    lengths: Lengths | None = None,
    kernels: Any = reference,
    **_: Any,
) -> None:
    """Arguments of :func:`forward`."""
    check_array("scores", scores)
    check_kernels(kernels, "ctc")
    *leading, n_frames, symbols = scores.shape
    if not (isinstance(targets, np.ndarray) and targets.dtype.kind in "iu"):
        raise TypeError(f"targets: expected an array of integers, got {getattr(targets, 'dtype', type(targets))}")
    if targets.ndim < 1 or targets.shape[:-1] != tuple(leading):
        raise ValueError(f"targets: expected shape (..., S) with scores' leading axes {leading}, got {targets.shape}")
    check_lengths("frames", frames, scores.shape[:-2], n_frames)
    check_lengths("lengths", lengths, targets.shape[:-1], targets.shape[-1])
    counted = np.arange(targets.shape[-1]) < lengths_or_all(lengths, targets.shape[:-1], targets.shape[-1])[:, None]
    chosen = targets.reshape(counted.shape)[counted]
    if chosen.size and not (chosen.min() > BLANK and chosen.max() < symbols):
        raise ValueError(
            f"targets: expected labels from 1 to {symbols - 1} (0 is the blank), got {chosen.min()} to {chosen.max()}"
        )


@door(check_forward)
def forward(
    scores: Array,
    targets: Labels,
    *,
    frames: Lengths | None = None,
    lengths: Lengths | None = None,
    infinite_to_zero: bool = False,
    kernels: Any = reference,
    work: Work = fresh,
) -> tuple[Any, Saved]:
    """Equations (1)-(6).

    Parameters
    ----------
    scores : ndarray ``(..., T, V)``
        ``a``, before any softmax; log-probabilities are scores as well.
    targets : ndarray of int ``(..., S)``
        Labels from 1 to ``V - 1``.
    frames : ndarray of int ``(...)``, optional
        Of each sequence; those behind are padding, with gradient 0.
    lengths : ndarray of int ``(...)``, optional
        The number of labels of each sequence, also 0; what stands behind them is not looked at.
    infinite_to_zero : bool
        A sequence whose labels no path says has loss 0, and still counts in the mean.
    kernels, work
        See `linattn_ref.nn`.

    Returns
    -------
    loss : number
        In nats a label: PyTorch's ``reduction="mean"``.
    saved : Saved

    Raises
    ------
    TypeError, ValueError
        Naming the argument: a label that is out of range or the blank, a length that is longer than its array.
    """
    n_frames, symbols = scores.shape[-2:]
    n = lengths_or_all(lengths, targets.shape[:-1], targets.shape[-1])  # (B,)
    share = (1 / (np.maximum(n, 1) * len(n))).astype(scores.dtype)  # (B,)
    losses, d_scores = kernels.ctc.forward(
        scores.reshape(-1, n_frames, symbols),
        targets.reshape(len(n), -1),
        lengths_or_all(frames, scores.shape[:-2], n_frames),
        n,
        share,
        d_scores=work((len(n), n_frames, symbols), scores.dtype),
    )  # (1), (4)-(8)
    if infinite_to_zero:
        losses = np.where(np.isposinf(losses), scores.dtype.type(0), losses)
    return (share * losses).sum(), Saved(d_scores.reshape(scores.shape))  # (3)


def check_backward(d_loss: Any, saved: Saved, **_: Any) -> None:
    """Argument of :func:`backward`."""
    if np.ndim(d_loss) != 0:
        raise ValueError(f"d_loss: expected a number, got shape {np.shape(d_loss)}")


@door(check_backward)
def backward(d_loss: Any, saved: Saved, *, work: Work = fresh) -> Gradients:
    """Equation (8)."""
    d_scores = saved.d_scores
    return Gradients(np.multiply(d_scores, d_loss, out=work(d_scores.shape, d_scores.dtype)))  # (8)
