"""Convolution along a sequence whose kernel is as wide as its stride: no position is in two windows.

    y_r = sum_t x_(r K + t) w_t                              (1)  t < K, w_t (W, W'); zeros follow the end

With the ``K`` rows of a window side by side, ``X_r (K W,)``, it is a linear layer, ``y_r = X_r w``, and so is its
gradient:

    dX_r = dy_r w^T,   dw = sum_r X_r^T dy_r                 (2)

One of the projections with which Linformer can mix keys and values, like `max_pool`.

Example
-------
One feature in, one out, and windows of two: the first number of each counts once, the second ten times.

>>> import numpy as np
>>> x, weight = np.array([[1.0], [2.0], [3.0]]), np.array([[[1.0]], [[10.0]]])
>>> y, saved = forward(x, weight)
>>> print(y.T)
[[21.  3.]]
>>> d_x, d_weight = backward(np.ones((2, 1)), saved)
>>> print(d_x.T, d_weight.T)
[[ 1. 10.  1.]] [[[4. 2.]]]

References
----------
Wang et al. (2020), "Linformer: self-attention with linear complexity", section 4.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array, Mask, check_array, check_key_mask, check_saved, check_shape
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.masks import zero_masked

__all__ = ["Gradients", "Saved", "backward", "forward"]


@documented
class Saved(NamedTuple):
    """What the backward pass needs: the sequence cut into windows, and the weight."""

    windows: Array  # (..., R, K W)
    weight: Array  # (K, W, W')
    key_mask: Mask | None  # (..., L)
    length: int  # L


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    x: Array  # (..., L, W)
    weight: Array  # (K, W, W')


def _check_forward(x: Array, weight: Array, *, key_mask: Mask | None = None) -> None:
    check_array("x", x)
    check_key_mask(key_mask, x)
    check_array("weight", weight, ndim=3, dtype=x.dtype)
    check_shape("weight", weight, (weight.shape[0], x.shape[-1], weight.shape[-1]), "(K, W, W')")


@door(_check_forward)
def forward(x: Array, weight: Array, *, key_mask: Mask | None = None) -> tuple[Array, Saved]:
    """Equation (1), ``(..., L, W) -> (..., R, W')`` with ``R = ceil(L / K)``.

    Parameters
    ----------
    x : ndarray ``(..., L, W)``
        Masked rows count as 0.
    weight : ndarray ``(K, W, W')``
        One matrix a position in the window; shared by all leading axes.
    key_mask : ndarray of bool ``(..., L)``, optional
    """
    *leading, length, width = x.shape
    kernel = weight.shape[0]
    reduced = -(-length // kernel)
    padding = [(0, 0)] * len(leading) + [(0, reduced * kernel - length), (0, 0)]
    windows = np.pad(zero_masked(x, key_mask), padding).reshape(*leading, reduced, kernel * width)
    y = windows @ weight.reshape(kernel * width, -1)  # (1)  (..., R, W')
    return y, Saved(windows, weight, key_mask, length)


def _check_backward(d_y: Array, saved: Any) -> None:
    check_saved(saved, Saved)
    check_array("d_y", d_y, dtype=saved.weight.dtype)
    check_shape("d_y", d_y, (*saved.windows.shape[:-1], saved.weight.shape[-1]), "(..., R, W')")


@door(_check_backward)
def backward(d_y: Array, saved: Saved) -> Gradients:
    """Gradients of ``x`` and ``weight``, equation (2)."""
    windows, weight, key_mask, length = saved
    kernel, width, out_width = weight.shape
    flat = weight.reshape(kernel * width, out_width)
    d_windows = d_y @ flat.T  # (2)  (..., R, K W)
    d_x = d_windows.reshape(*d_y.shape[:-2], -1, width)[..., :length, :]  # (..., L, W)
    d_weight = windows.reshape(-1, kernel * width).T @ d_y.reshape(-1, out_width)  # (2)  (K W, W')
    return Gradients(zero_masked(d_x, key_mask), d_weight.reshape(weight.shape))
