"""Connectionist temporal classification (CTC): a loss for labels without times.

A network scores ``V`` symbols in each of ``T`` frames, symbol 0 being the *blank*. A path is one symbol per frame. What
it spells is found by writing a run of the same symbol once and leaving out the blanks, so both ``a a - b`` and
``- a b b`` spell ``a b``. The probability of labels is that of all paths that spell them:

    y_t = softmax(a_t)                                       (1)  (V,)
    p = sum of prod_t y_t(path_t), over all paths that spell the labels                  (2)
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
A path that is in state ``s`` at ``t`` has ``y_t(l'_s)`` as a factor, once. So ``dp / dlog y_t(c)`` is the sum over
all paths with ``c`` at ``t``. Divided by ``p``, it is their share: how much of frame ``t`` belongs to ``c``:

    g_t(c) = sum over s with l'_s = c of alpha_t(s) beta_t(s) / p                        (7)

These sum to 1 over ``c`` by (6). From (1), ``dlog y_t(c) / da_t(k) = [c = k] - y_t(k)``, so

    da_t(k) = -sum_c g_t(c) ([c = k] - y_t(k)) = y_t(k) - g_t(k)                         (8)

times the gradient of the loss and ``1 / (B max(S, 1))``: prediction minus target, as in cross-entropy, with
``g`` in the place of a target. Backwards in time, (5) is (4): ``beta_t(s)`` is the sum that arrives in a state before
its own frame is counted.

Labels that no path spells, because there are more of them than frames (counting a blank between two that are the same),
have ``p = 0``: the loss is infinite, or 0 with ``infinite_to_zero``. Nothing could make them likelier, and the gradient
is 0 either way.

>>> scores = np.log([[[0.4, 0.6], [0.6, 0.4]]])  # two frames, of blank and one label
>>> loss, saved = forward(scores, np.array([[1]]))  # the paths 1 1, 1 -, - 1
>>> round(float(np.exp(-loss)), 2), backward(1.0, saved).scores.round(3)
(0.76, array([[[ 0.189, -0.189],
        [ 0.126, -0.126]]]))

References
----------
Graves, Fernández, Gomez and Schmidhuber (2006), "Connectionist temporal classification", which has (4) as (6) and
(7), (5) as (10) and (11) without the factor ``y_t``, (6) at the last frame as (8), and (8) as (16).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.nn.lengths import Lengths, as_sequences, check_lengths, lengths_or_all
from linattn_ref.op import Array, Float, Int, Integers, op

__all__ = ["BLANK", "Gradients", "Saved", "backward", "forward"]

BLANK = 0


class Paths(NamedTuple):
    """Of one sequence."""

    log_y: Array  # (T, V)
    states: NDArray[np.intp]  # (2 S + 1,), l'
    skip: Array  # (2 S + 1,), 0 where the blank before may be left out, else -inf
    log_alpha: Array  # (T, 2 S + 1)
    log_p: Array  # a number


class Saved(NamedTuple):
    scores: Float[Array, "... T V"]
    paths: tuple[Paths | None, ...]  # of each sequence; None where it has no frame
    share: Array  # (B,), 1 / (B max(S, 1))


class Gradients(NamedTuple):
    scores: Float[Array, "... T V"]


def check_values(scores: Any, targets: Any, frames: Any = None, lengths: Any = None, **_: Any) -> None:
    check_lengths("frames", frames, scores.shape[-2])
    check_lengths("lengths", lengths, targets.shape[-1])
    counted = np.arange(targets.shape[-1]) < lengths_or_all(lengths, targets.shape[:-1], targets.shape[-1])[:, None]
    chosen, symbols = targets.reshape(counted.shape)[counted], scores.shape[-1]
    if chosen.size and not (chosen.min() > BLANK and chosen.max() < symbols):
        raise ValueError(
            f"targets: expected labels from 1 to {symbols - 1} (0 is the blank), got {chosen.min()} to {chosen.max()}"
        )


@op(values=check_values)
def forward(
    scores: Float[Array, "... t V"],
    targets: Int[Integers, "... s"],
    *,
    frames: Int[Lengths, "..."] | None = None,
    lengths: Int[Lengths, "..."] | None = None,
    infinite_to_zero: bool = False,
) -> tuple[Any, Saved]:
    """Equations (1)-(4) and (6).

    Parameters
    ----------
    scores : ndarray ``(..., T, V)``
        ``a``, before any softmax; log-probabilities are scores as well.
    targets : ndarray of int ``(..., S)``
        Labels from 1 to ``V - 1``.
    frames : ndarray of int ``(...)``, optional
        The number of frames of each sequence; those behind are padding, with gradient 0.
    lengths : ndarray of int ``(...)``, optional
        The number of labels of each sequence, also 0; what stands behind them is not looked at.
    infinite_to_zero : bool
        A sequence whose labels no path spells has loss 0, and still counts in the mean.

    Returns
    -------
    loss : number
        In nats per label: PyTorch's ``reduction="mean"``.
    saved : Saved

    Raises
    ------
    TypeError, ValueError
        Naming the argument: a label that is out of range or the blank, a length that is longer than its array.
    """
    rows, labels, n_frames, n_labels, share = in_rows(scores, targets, frames, lengths)
    paths = tuple(paths_of(a[:t], said[:s]) for a, said, t, s in zip(rows, labels, n_frames, n_labels, strict=True))
    losses = np.array([-one.log_p if one else np.inf if s else 0 for one, s in zip(paths, n_labels, strict=True)])
    return mean_of(losses.astype(scores.dtype), share, infinite_to_zero), Saved(scores, paths, share)


@op
def backward(d_loss: float, saved: Saved) -> Gradients:
    """Equations (5), (7) and (8)."""
    d_scores = np.zeros_like(saved.scores, order="C")
    for d_a, one, share in zip(as_sequences(d_scores), saved.paths, saved.share, strict=True):
        if one is None or one.log_p == -np.inf:  # no path, and no gradient
            continue
        log_y, states, skip, log_alpha, _ = one
        log_beta = sums(log_y[::-1, states[::-1]], np.roll(skip, -2)[::-1])[0][::-1, ::-1]  # (5)
        log_both = log_alpha + log_beta
        g = np.exp(log_both - log_both.max(axis=1, keepdims=True))
        g /= g.sum(axis=1, keepdims=True)  # (7), p as (6) has it in this frame: a common error cancels
        d_a[: len(log_y)] = np.exp(log_y)  # (8)
        for s, symbol in enumerate(states):
            d_a[: len(log_y), symbol] -= g[:, s]  # (8)
        d_a *= d_loss * share
    return Gradients(d_scores)


def paths_of(scores: Array, labels: Integers) -> Paths | None:
    """Equations (1), (4) and (6) for one sequence, ``scores (T, V)`` and ``labels (S,)``."""
    if len(scores) == 0:
        return None
    shift = scores - scores.max(axis=-1, keepdims=True)
    log_y = shift - np.log(np.exp(shift).sum(axis=-1, keepdims=True))  # (1)  (T, V)
    states = np.full(2 * len(labels) + 1, BLANK)  # l'
    states[1::2] = labels
    skip = np.full(len(states), -np.inf, scores.dtype)  # log 1 where the blank before may be left out
    skip[3::2][labels[1:] != labels[:-1]] = 0
    _, log_alpha = sums(log_y[:, states], skip)  # (4)  (T, 2 S + 1)
    return Paths(log_y, states, skip, log_alpha, np.logaddexp.reduce(log_alpha[-1, -2:]))  # (2) by (6)


def sums(log_y: Array, skip: Array) -> tuple[Array, Array]:
    """Return ``log sum_{r -> s} alpha_(t-1)(r)`` and ``log alpha_t(s)`` of (4), for ``log y_t(l'_s) (T, states)``."""
    arrived, alpha = np.full_like(log_y, -np.inf), np.empty_like(log_y)
    arrived[0, :2] = 0
    alpha[0] = arrived[0] + log_y[0]  # (4)
    for t in range(1, len(log_y)):
        arrived[t] = alpha[t - 1]
        arrived[t, 1:] = np.logaddexp(arrived[t, 1:], alpha[t - 1, :-1])
        arrived[t, 2:] = np.logaddexp(arrived[t, 2:], alpha[t - 1, :-2] + skip[2:])
        alpha[t] = arrived[t] + log_y[t]  # (4)
    return arrived, alpha


def in_rows(scores: Array, targets: Integers, frames: Lengths | None, lengths: Lengths | None) -> Any:
    """``(B, T, V)`` scores, ``(B, S)`` labels, how many of each count, and each sequence's share of the mean (3)."""
    n_frames = lengths_or_all(frames, scores.shape[:-2], scores.shape[-2])
    n_labels = lengths_or_all(lengths, targets.shape[:-1], targets.shape[-1])
    share = (1 / (np.maximum(n_labels, 1) * len(n_labels))).astype(scores.dtype)
    return as_sequences(scores), targets.reshape(len(share), -1), n_frames, n_labels, share


def mean_of(losses: Array, share: Array, infinite_to_zero: bool) -> Any:
    """Equation (3)."""
    if infinite_to_zero:
        losses = np.where(np.isposinf(losses), losses.dtype.type(0), losses)
    return (share * losses).sum()  # (3)
