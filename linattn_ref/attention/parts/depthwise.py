"""Depthwise convolution along a sequence: each head has one row of ``K`` weights, the same for all its features.

    y_i = sum_t c_t v_(i + t - K // 2)                       (1)  K odd, zeros beyond both ends

As a matrix it is banded, ``y = C V`` with ``C_ij = c_(j - i + K // 2)``; so its gradient is ``C^T dy``, which is the
same convolution with the weights in reverse order:

    dv_j = sum_t c_(K - 1 - t) dy_(j + t - K // 2)           (2)
    dc_t = sum_i dy_i . v_(i + t - K // 2)                   (3)  summed over everything that shares the weights

Example
-------
One head; the weights are for the row before, the row itself, and the one after.

>>> import numpy as np
>>> v, conv = np.array([[[1.0], [2.0], [4.0]]]), np.array([[0.5, 0.0, 10.0]])
>>> y, saved = forward(v, conv)
>>> print(y[0].T)
[[20.  40.5  1. ]]
>>> print(backward(np.ones((1, 3, 1)), saved).conv)  # sums of what each weight met
[[3. 7. 6.]]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.op import Array, Float, op
from linattn_ref.op.options import check_sizes

__all__ = ["Gradients", "Saved", "backward", "check_conv", "forward", "matrix"]


class Saved(NamedTuple):
    """What the backward pass needs: the inputs."""

    v: Float[Array, "... N M"]
    conv: Any  # (H, K)


class Gradients(NamedTuple):
    v: Float[Array, "... N M"]
    conv: Array  # like conv


def check_conv(v: Any, conv: Any, **_: Any) -> None:
    """``conv (H, K)`` has a row for each entry of the last leading axis of ``v``, and ``K`` is odd."""
    if conv is None:
        return
    alone = v.ndim == 2
    heads, taps = 1 if alone else v.shape[-3], conv.shape[-1]
    if conv.shape != (heads, taps) and not (alone and conv.ndim == 1):
        raise ValueError(
            f"conv: expected shape (H, K) with H = {heads}, the last leading axis of v {v.shape}, got {conv.shape}"
        )
    check_odd(conv)


def check_odd(conv: Any) -> None:
    if conv.shape[-1] % 2 == 0:
        raise ValueError(f"conv: expected an odd number of weights K, got {conv.shape[-1]}")


@op(look=check_conv)
def forward(v: Float[Array, "... N M"], conv: Float[Array, "*... K"]) -> tuple[Array, Saved]:
    """Equation (1), for ``v (..., H, N, M)`` and ``conv (H, K)``, ``K`` odd.

    Where ``v`` is ``(N, M)``, one head without an axis, ``conv`` is ``(K,)`` or ``(1, K)``.
    """
    return correlate(v, conv), Saved(v, conv)  # (1)


@op
def backward(d_y: Float[Array, "... N M"], saved: Saved) -> Gradients:
    """Equations (2) and (3)."""
    v, conv = saved
    n, taps = v.shape[-2], conv.shape[-1]
    rows = padded(v, taps)
    d_conv = np.stack([(d_y * rows[..., t : t + n, :]).sum(axis=(-2, -1)) for t in range(taps)], axis=-1)  # (3)
    d_conv = d_conv.reshape(-1, *conv.shape).sum(axis=0)  # (H, K), from (..., H, K)
    return Gradients(correlate(d_y, conv[..., ::-1]), d_conv)  # (2)


def look_at_length(conv: Any, length: Any) -> None:
    check_sizes(length=length)
    check_odd(conv)


@op(look=look_at_length)
def matrix(conv: Float[Array, "... K"], length: int) -> Array:
    """The banded matrix ``C`` of (1), for teaching: ``(H, K) -> (H, N, N)``, one weight on each diagonal."""
    c = np.zeros((*conv.shape[:-1], length, length), conv.dtype)
    for t in range(conv.shape[-1]):
        c += conv[..., t, None, None] * np.eye(length, k=t - conv.shape[-1] // 2, dtype=conv.dtype)
    return c


def correlate(v: Array, conv: Array) -> Array:
    n, taps = v.shape[-2], conv.shape[-1]
    rows, y = padded(v, taps), np.zeros_like(v)
    weights = conv if v.ndim > 2 else conv.reshape(taps)
    for t in range(taps):
        y += weights[..., t, None, None] * rows[..., t : t + n, :]
    return y


def padded(v: Array, taps: int) -> Array:
    """``v`` with ``K // 2`` rows of zeros at both ends, ``(..., N + K - 1, M)``."""
    return np.pad(v, [(0, 0)] * (v.ndim - 2) + [(taps // 2, taps // 2), (0, 0)])
