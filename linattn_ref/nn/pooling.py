"""Pooling: one row for a whole sequence, the mean of its rows or the first of them.

    y = sum_i s_i x_i                                        (1)  s_i = m_i / sum m for the mean, [i = 1] for the first
    dx_i = s_i dy                                            (2)

``m`` is the key mask: what pads a sequence has no share in its mean.

>>> x, mask = np.array([[[1.0], [3.0], [9.0]]]), np.array([[True, True, False]])
>>> y, saved = forward(x, key_mask=mask)
>>> y, backward(np.array([[1.0]]), saved).x.ravel()
(array([[2.]]), array([0.5, 0.5, 0. ]))
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from linattn_ref.attention.arguments import Array, Mask, check_array, check_bool, check_shape
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.nn.buffers import Work, fresh

__all__ = ["POOLS", "Gradients", "Pool", "Saved", "backward", "forward"]

Pool = Literal["mean", "first"]
POOLS: tuple[Pool, ...] = get_args(Pool)


@documented
class Saved(NamedTuple):
    """What the backward pass needs."""

    share: Array  # (B, N), s
    width: int  # E


@documented
class Gradients(NamedTuple):
    """Gradient of the input of ``forward``."""

    x: Array  # (B, N, E)


def check_forward(x: Array, *, pool: Pool = "mean", key_mask: Mask | None = None, **_: Any) -> None:
    """Arguments of :func:`forward`."""
    check_array("x", x, ndim=3)
    if pool not in POOLS:
        raise ValueError(f"pool: expected one of {', '.join(POOLS)}, got {pool!r}")
    if key_mask is not None:
        check_bool("key_mask", key_mask)
        check_shape("key_mask", key_mask, x.shape[:-1], "(B, N)")  # type: ignore[arg-type]
        if not key_mask.any(axis=-1).all():
            empty = int(key_mask.any(axis=-1).argmin())
            raise ValueError(f"key_mask: sequence {empty} has no token, and the mean of nothing is nothing")


@door(check_forward)
def forward(x: Array, *, pool: Pool = "mean", key_mask: Mask | None = None, work: Work = fresh) -> tuple[Array, Saved]:
    """Equation (1): ``(B, N, E) -> (B, E)``.

    Parameters
    ----------
    x : ndarray ``(B, N, E)``
    pool : {"mean", "first"}
    key_mask : ndarray of bool ``(B, N)``, optional
        ``m``, at least one True for each sequence.
    work
        See `linattn_ref.nn`.
    """
    share = np.zeros(x.shape[:-1], x.dtype) if pool == "first" else np.ones(x.shape[:-1], x.dtype)  # (B, N)
    if pool == "first":
        share[:, 0] = 1
    elif key_mask is not None:
        share *= key_mask
    share /= share.sum(axis=-1, keepdims=True)
    y = np.matmul(share[:, None], x, out=work((len(x), 1, x.shape[-1]), x.dtype))  # (1)  (B, 1, E)
    return y[:, 0], Saved(share, x.shape[-1])


def check_backward(d_y: Array, saved: Saved, **_: Any) -> None:
    """Shape and dtype of :func:`backward`."""
    check_array("d_y", d_y, dtype=saved.share.dtype)
    check_shape("d_y", d_y, (len(saved.share), saved.width), "of y")


@door(check_backward)
def backward(d_y: Array, saved: Saved, *, work: Work = fresh) -> Gradients:
    """Equation (2)."""
    share, width = saved
    d_x = np.multiply(share[..., None], d_y[:, None], out=work((*share.shape, width), d_y.dtype))  # (2)  (B, N, E)
    return Gradients(d_x)
