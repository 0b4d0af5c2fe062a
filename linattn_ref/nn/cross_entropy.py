"""Cross-entropy: how surprised a network is by the tokens that came, in nats.

    log p_i = a_i - log sum_c exp(a_ic)                      (1)  (V,)
    loss = -sum_i w_i log p_i[t_i] / sum_i w_i               (2)

``a`` are scores, ``t`` the targets and ``w`` a weight a target, 1 unless given and 0 where it is to be ignored.

The gradient, by hand
---------------------
From (1), ``d log p_i[t] / da_ic = [c = t] - p_ic``, so that with ``G`` the gradient of the loss

    da_ic = G w_i / sum w (p_ic - [c = t_i])                 (3)

Forward, where ``exp`` is at hand, (3) is made at once for ``G = 1``, and kept in place of ``p``. The plain text of (1)
and (3) is `linattn_ref.kernels.reference.cross_entropy`.

>>> loss, saved = forward(np.log([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]), np.array([0, 1]))
>>> round(float(loss), 4), backward(1.0, saved).scores.round(2)
(0.4581, array([[-0.25,  0.12,  0.12],
       [ 0.05, -0.1 ,  0.05]]))
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.attention.arguments import Array, check_array, check_shape
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.rooms import check_kernels
from linattn_ref.kernels import reference
from linattn_ref.nn.buffers import Work, fresh

__all__ = ["IGNORE", "Gradients", "Saved", "backward", "forward"]

IGNORE = -100  # a target that does not count: PyTorch's


@documented
class Saved(NamedTuple):
    """What the backward pass needs."""

    d_scores: Array  # (..., V), (3) for G = 1


@documented
class Gradients(NamedTuple):
    """Gradient of the input of ``forward``."""

    scores: Array  # (..., V)


def check_forward(
    scores: Array,
    targets: NDArray[np.integer[Any]],
    *,
    ignore: int = IGNORE,
    weight: Array | None = None,
    kernels: Any = reference,
    **_: Any,
) -> None:
    """Arguments of :func:`forward`."""
    check_array("scores", scores, ndim=1)
    check_kernels(kernels, "cross_entropy")
    if not (isinstance(targets, np.ndarray) and targets.dtype.kind in "iu"):
        raise TypeError(f"targets: expected an array of integers, got {getattr(targets, 'dtype', type(targets))}")
    check_shape("targets", targets, scores.shape[:-1], "of scores without its last axis")  # type: ignore[arg-type]
    counted = targets != ignore
    chosen = targets[counted]
    if chosen.size and not (chosen.min() >= 0 and chosen.max() < scores.shape[-1]):
        raise ValueError(
            f"targets: expected numbers from 0 to {scores.shape[-1] - 1}, or {ignore} for those to be ignored,"
            f" got {chosen.min()} to {chosen.max()}"
        )
    if weight is not None:
        check_array("weight", weight, ndim=0, dtype=scores.dtype)
        check_shape("weight", weight, targets.shape, "of targets")
        bad = weight[~((weight >= 0) & (weight < np.inf))]
        if bad.size:
            raise ValueError(f"weight: expected finite numbers of at least 0, got {bad[0]}")
        counted = counted & (weight > 0)
    if not counted.any():
        raise ValueError("targets: all are ignored or have weight 0, and the mean of nothing is nothing")


@door(check_forward)
def forward(
    scores: Array,
    targets: NDArray[np.integer[Any]],
    *,
    ignore: int = IGNORE,
    weight: Array | None = None,
    kernels: Any = reference,
    work: Work = fresh,
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
    kernels, work
        See `linattn_ref.nn`.

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
    counted = targets != ignore
    t = np.where(counted, targets, 0)  # (...)
    w = counted.astype(scores.dtype) if weight is None else np.where(counted, weight, scores.dtype.type(0))
    w = w / w.max()  # so that no sum of them overflows
    share = w / w.sum()  # (...)
    log_p, d_scores = kernels.cross_entropy.forward(
        scores, t, share, d_scores=work(scores.shape, scores.dtype)
    )  # (1), (3)
    loss = -np.multiply(share, log_p, out=np.zeros_like(share), where=share > 0).sum()  # (2); 0 times -inf is 0
    return loss, Saved(d_scores)


def check_backward(d_loss: Any, saved: Saved, **_: Any) -> None:
    """Argument of :func:`backward`."""
    if np.ndim(d_loss) != 0:
        raise ValueError(f"d_loss: expected a number, got shape {np.shape(d_loss)}")


@door(check_backward)
def backward(d_loss: Any, saved: Saved, *, work: Work = fresh) -> Gradients:
    """Equation (3)."""
    d_scores = saved.d_scores
    return Gradients(np.multiply(d_scores, d_loss, out=work(d_scores.shape, d_scores.dtype)))  # (3)
