"""Cross-entropy: how surprised a network is by the tokens that came, in nats.

    log p_i = a_i - log sum_c exp(a_ic)                      (1)  (V,)
    loss = -sum_i (w_i / sum_l w_l) sum_c y_ic log p_ic,   y_ic = (1 - s) [c = t_i] + s / V      (2)

``a`` are scores, ``t`` the targets, and ``w`` is a weight per target: 1 unless given, 0 for a target that is ignored.
``s`` is label smoothing, 0 unless given: a share ``s`` of each target is spread over all ``V`` tokens, so that no
score has to grow for ever.

The gradient, by hand
---------------------
From (1), ``d log p_i[t] / da_ic = [c = t] - p_ic``. So with ``G`` the gradient of the loss, where ``y_i`` adds up to 1,

    da_ic = G (w_i / sum_l w_l) (p_ic - y_ic)                (3)

>>> loss, saved = forward(np.log([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]), np.array([0, 1]))
>>> round(float(loss), 4), backward(1.0, saved).scores.round(2)
(0.4581, array([[-0.25,  0.12,  0.12],
       [ 0.05, -0.1 ,  0.05]]))

References
----------
Szegedy et al. (2016), "Rethinking the inception architecture for computer vision", section 7 (label smoothing).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.op import Array, Float, Int, Integers, op
from linattn_ref.op.options import is_number

__all__ = ["IGNORE", "Gradients", "Saved", "backward", "forward", "shares"]

IGNORE = -100  # a target that does not count: PyTorch's


class Saved(NamedTuple):
    log_p: Float[Array, "... V"]
    targets: Int[Integers, "..."]
    share: Float[Array, "..."]  # w_i / sum w
    label_smoothing: float


class Gradients(NamedTuple):
    scores: Float[Array, "... V"]


def look(ignore: Any = IGNORE, label_smoothing: Any = 0.0, **_: Any) -> None:
    if isinstance(ignore, bool) or not isinstance(ignore, int):
        raise TypeError(f"ignore: expected an integer, got {ignore!r}")
    if not (is_number(label_smoothing) and 0 <= label_smoothing <= 1):
        raise ValueError(f"label_smoothing: expected a number from 0 to 1, got {label_smoothing!r}")


def check_values(scores: Any, targets: Any, ignore: int = IGNORE, weight: Any = None, **_: Any) -> None:
    counted = targets != ignore
    chosen = targets[counted]
    if chosen.size and not (chosen.min() >= 0 and chosen.max() < scores.shape[-1]):
        raise ValueError(
            f"targets: expected numbers from 0 to {scores.shape[-1] - 1}, or {ignore} for those to be ignored,"
            f" got {chosen.min()} to {chosen.max()}"
        )
    if weight is not None:
        bad = weight[~((weight >= 0) & (weight < np.inf))]
        if bad.size:
            raise ValueError(f"weight: expected finite numbers of at least 0, got {bad[0]}")
        counted = counted & (weight > 0)
    if not counted.any():
        raise ValueError("targets: all are ignored or have weight 0, and the mean of nothing is nothing")


@op(look=look, values=check_values)
def forward(
    scores: Float[Array, "... V"],
    targets: Int[Integers, "..."],
    *,
    ignore: int = IGNORE,
    weight: Float[Array, "..."] | None = None,
    label_smoothing: float = 0.0,
) -> tuple[Any, Saved]:
    """Equations (1) and (2).

    Parameters
    ----------
    scores : ndarray ``(..., V)``
        ``a``, before any softmax.
    targets : ndarray of int ``(...)``
        From 0 to ``V - 1``, or ``ignore``.
    ignore : int
        A target that is this number does not count.
    weight : ndarray ``(...)``, optional
        ``w``, finite and not negative.
    label_smoothing : float
        ``s``, from 0 to 1.

    Returns
    -------
    loss : number
        In nats; divided by ``log 2`` it is in bits. Without weights and label smoothing, ``exp`` of it is the
        perplexity.
    saved : Saved

    Raises
    ------
    TypeError, ValueError
        Naming the argument: a target out of range, or none that counts.
    """
    t, share = shares(targets, ignore, weight, scores.dtype)
    a = scores - scores.max(axis=-1, keepdims=True)  # cancels in (1)
    log_p = a - np.log(np.exp(a).sum(axis=-1, keepdims=True))  # (1)
    of_targets = np.take_along_axis(log_p, t[..., None], axis=-1)[..., 0]
    if label_smoothing:
        of_targets = of_targets * (1 - label_smoothing) if label_smoothing < 1 else np.zeros_like(of_targets)
        of_targets = of_targets + label_smoothing * log_p.mean(axis=-1)  # (2), by y_i
    loss = -(share[share > 0] * of_targets[share > 0]).sum()  # (2); 0 times -inf is 0
    return loss, Saved(log_p, t, share, label_smoothing)


@op
def backward(d_loss: float, saved: Saved) -> Gradients:
    """Equation (3)."""
    log_p, t, share, s = saved
    is_target = np.arange(log_p.shape[-1]) == t[..., None]  # [c = t_i]
    p, y = np.exp(log_p), np.where(is_target, log_p.dtype.type(1 - s), log_p.dtype.type(0)) + s / log_p.shape[-1]
    counts = share[..., None] > 0  # others have gradient 0, whatever their scores
    return Gradients(np.where(counts, d_loss * share[..., None] * (p - y), log_p.dtype.type(0)))  # (3)


def shares(targets: Integers, ignore: int, weight: Array | None, dtype: Any) -> tuple[Integers, Array]:
    """Return the targets, 0 for those that are ignored, and ``w_i / sum w``."""
    counts = targets != ignore
    w = counts.astype(dtype) if weight is None else np.where(counts, weight, dtype.type(0))
    w = w / w.max()  # so that no sum of them overflows
    return np.where(counts, targets, 0), w / w.sum()
