"""Cross-entropy: how surprised a network is by the tokens that came, in nats.

    log p_i = a_i - log sum_c exp(a_ic)                      (1)  (V,)
    loss = -sum_i w_i log p_i[t_i] / sum_i w_i               (2)

``a`` are scores, ``t`` the targets, and ``w`` is a weight per target: 1 unless given, 0 for a target that is ignored.

The gradient, by hand
---------------------
From (1), ``d log p_i[t] / da_ic = [c = t] - p_ic``, so that with ``G`` the gradient of the loss

    da_ic = G w_i / sum w (p_ic - [c = t_i])                 (3)

>>> loss, saved = forward(np.log([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]), np.array([0, 1]))
>>> round(float(loss), 4), backward(1.0, saved).scores.round(2)
(0.4581, array([[-0.25,  0.12,  0.12],
       [ 0.05, -0.1 ,  0.05]]))
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.op import Array, Float, Int, Integers, op

__all__ = ["IGNORE", "Gradients", "Saved", "backward", "forward", "shares"]

IGNORE = -100  # a target that does not count: PyTorch's


class Saved(NamedTuple):
    log_p: Float[Array, "... V"]
    targets: Int[Integers, "..."]
    share: Float[Array, "..."]  # w_i / sum w


class Gradients(NamedTuple):
    scores: Float[Array, "... V"]


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


@op(values=check_values)
def forward(
    scores: Float[Array, "... V"],
    targets: Int[Integers, "..."],
    *,
    ignore: int = IGNORE,
    weight: Float[Array, "..."] | None = None,
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

    Returns
    -------
    loss : number
        In nats; divided by ``log 2`` it is in bits, and ``exp`` of it is the perplexity.
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
    loss = -(share[share > 0] * of_targets[share > 0]).sum()  # (2); 0 times -inf is 0
    return loss, Saved(log_p, t, share)


@op
def backward(d_loss: float, saved: Saved) -> Gradients:
    """Equation (3)."""
    log_p, t, share = saved
    is_target = np.arange(log_p.shape[-1]) == t[..., None]  # [c = t_i]
    counts = share[..., None] > 0  # others have gradient 0, whatever their scores
    return Gradients(
        np.where(counts, d_loss * share[..., None] * (np.exp(log_p) - is_target), log_p.dtype.type(0))
    )  # (3)


def shares(targets: Integers, ignore: int, weight: Array | None, dtype: Any) -> tuple[Integers, Array]:
    """Return the targets, 0 for those that are ignored, and ``w_i / sum w``."""
    counts = targets != ignore
    w = counts.astype(dtype) if weight is None else np.where(counts, weight, dtype.type(0))
    w = w / w.max()  # so that no sum of them overflows
    return np.where(counts, targets, 0), w / w.sum()
