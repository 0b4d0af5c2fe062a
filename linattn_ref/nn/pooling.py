"""Pooling: one row for a whole sequence, the mean of its rows or the first of them.

    s_i = m_i / sum m for the mean,   s_i = [i = 1] for the first             (1)
    y = sum_i s_i x_i                                        (2)
    dx_i = s_i dy                                            (3)

``m`` is the key mask: what pads a sequence has no share in its mean. The first row is the first, whatever the mask.

>>> x, mask = np.array([[[1.0], [3.0], [9.0]]]), np.array([[True, True, False]])
>>> y, saved = forward(x, key_mask=mask)
>>> y, backward(np.array([[1.0]]), saved).x.ravel()
(array([[2.]]), array([0.5, 0.5, 0. ]))
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from linattn_ref.attention.parts.masks import mix
from linattn_ref.op import Array, Bool, Float, op
from linattn_ref.op.options import check_choice

__all__ = ["Gradients", "Pool", "Saved", "backward", "forward"]

Pool = Literal["mean", "first"]


class Saved(NamedTuple):
    share: Float[Array, "B N"]  # s
    width: int  # E


class Gradients(NamedTuple):
    x: Float[Array, "B N E"]


def look(pool: Any, **_: Any) -> None:
    check_choice("pool", pool, get_args(Pool))


def check_values(key_mask: Any = None, pool: Any = "mean", **_: Any) -> None:
    if pool == "mean" and key_mask is not None and not key_mask.any(axis=-1).all():
        empty = int(key_mask.any(axis=-1).argmin())
        raise ValueError(f"key_mask: sequence {empty} has no token, and the mean of nothing is nothing")


@op(look=look, values=check_values)
def forward(
    x: Float[Array, "B N E"], *, pool: Pool = "mean", key_mask: Bool[Array, "B N"] | None = None
) -> tuple[Array, Saved]:
    """Equations (1) and (2): ``(B, N, E)`` to ``(B, E)``.

    Parameters
    ----------
    x : ndarray ``(B, N, E)``
    pool : {"mean", "first"}
    key_mask : ndarray of bool ``(B, N)``, optional
        ``m``; for the mean, at least one True for each sequence.
    """
    share = np.ones(x.shape[:-1], x.dtype) if key_mask is None else key_mask.astype(x.dtype)
    if pool == "first":
        share = np.zeros_like(share)
        share[:, 0] = 1
    share /= share.sum(axis=-1, keepdims=True)  # (1)
    return mix(share[:, None], x)[:, 0], Saved(share, x.shape[-1])  # (2)


def look_back(d_y: Any, saved: Any) -> None:
    if d_y.shape[-1] != saved.width:
        raise ValueError(f"d_y: expected shape (B, E) = {(len(d_y), saved.width)}, got {d_y.shape}")


@op(look=look_back)
def backward(d_y: Float[Array, "B E"], saved: Saved) -> Gradients:
    """Equation (3)."""
    return Gradients(saved.share[..., None] * d_y[:, None])  # (3)
