"""Depthwise convolution along a sequence: each head has one row of ``K`` weights, the same for all its features.

    y_i = sum_t c_t v_(i + t - K // 2)                       (1)  K odd, zeros beyond both ends

As a matrix it is banded, ``y = C V`` with ``C_ij = c_(j - i + K // 2)``; so its gradient is ``C^T dy``, which is the
same convolution with the weights in reverse order:

    dv_j = sum_t c_(K - 1 - t) dy_(j + t - K // 2)           (2)
    dc_t = sum_i dy_i . v_(i + t - K // 2)                   (3)  summed over all that shares the weights

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

from linattn_ref.attention.arguments import Array, check_array, check_saved, check_shape, check_sizes
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.plain_numbers import plain_numbers

__all__ = ["Gradients", "Saved", "backward", "check_conv", "forward", "matrix"]


@documented
class Saved(NamedTuple):
    """What the backward pass needs: the inputs."""

    v: Array  # (..., H, N, M)
    conv: Array  # (H, K)


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    v: Array  # (..., H, N, M)
    conv: Array  # (H, K)


def _check_forward(v: Array, conv: Array) -> None:
    check_array("v", v)
    check_conv(conv, v)


@door(_check_forward)
def forward(v: Array, conv: Array) -> tuple[Array, Saved]:
    """Equation (1).

    Parameters
    ----------
    v : ndarray ``(..., H, N, M)``
    conv : ndarray ``(H, K)``, ``K`` odd
        Where ``v`` is ``(N, M)``, one head without an axis, ``(K,)`` or ``(1, K)``.
    """
    return _correlate(v, conv), Saved(v, conv)  # (1)


def _check_backward(d_y: Array, saved: Any) -> None:
    check_saved(saved, Saved)
    check_array("d_y", d_y, dtype=saved.v.dtype)
    check_shape("d_y", d_y, saved.v.shape, "of v")


@door(_check_backward)
def backward(d_y: Array, saved: Saved) -> Gradients:
    """Gradients of ``v`` and ``conv``, equations (2) and (3)."""
    v, conv = saved
    n, taps = v.shape[-2], conv.shape[-1]
    padded = _padded(v, taps)
    d_conv = np.stack([(d_y * padded[..., t : t + n, :]).sum(axis=(-2, -1)) for t in range(taps)], axis=-1)  # (3)
    d_conv = d_conv.reshape(-1, *conv.shape).sum(axis=0)  # (H, K), from (..., H, K)
    return Gradients(_correlate(d_y, conv[..., ::-1]), d_conv)  # (2)


@plain_numbers
def matrix(conv: Array, length: int) -> Array:
    """The banded matrix ``C`` of (1), for teaching: ``(H, K) -> (H, N, N)``, one weight on each diagonal."""
    check_array("conv", conv, ndim=1)
    check_sizes(length=length)
    c = np.zeros((*conv.shape[:-1], length, length), conv.dtype)
    for t in range(conv.shape[-1]):
        c += conv[..., t, None, None] * np.eye(length, k=t - conv.shape[-1] // 2, dtype=conv.dtype)
    return c


def _correlate(v: Array, conv: Array) -> Array:
    n, taps = v.shape[-2], conv.shape[-1]
    padded, y = _padded(v, taps), np.zeros_like(v)
    weights = conv if v.ndim > 2 else conv.reshape(taps)
    for t in range(taps):
        y += weights[..., t, None, None] * padded[..., t : t + n, :]
    return y


def _padded(v: Array, taps: int) -> Array:
    """``v`` with ``K // 2`` rows of zeros at both ends, ``(..., N + K - 1, M)``."""
    return np.pad(v, [(0, 0)] * (v.ndim - 2) + [(taps // 2, taps // 2), (0, 0)])


def check_conv(conv: Array, v: Array) -> None:
    """``conv (H, K)`` has a row for each entry of the last leading axis of ``v``, and ``K`` is odd."""
    check_array("conv", conv, ndim=1, dtype=v.dtype)
    alone = v.ndim == 2
    heads, taps = 1 if alone else v.shape[-3], conv.shape[-1]
    if conv.shape != (heads, taps) and not (alone and conv.ndim == 1):
        raise ValueError(
            f"conv: expected shape (H, K) with H = {heads}, the last leading axis of v {v.shape}, got {conv.shape}"
        )
    if taps % 2 == 0:
        raise ValueError(f"conv: expected an odd number of weights K, got {taps}")
