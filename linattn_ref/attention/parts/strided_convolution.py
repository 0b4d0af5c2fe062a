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

from typing import NamedTuple

import numpy as np

from linattn_ref.attention.parts.masks import shown
from linattn_ref.op import Array, Bool, Float, op

__all__ = ["Gradients", "Saved", "backward", "forward"]


class Saved(NamedTuple):
    """What the backward pass needs: the sequence cut into windows, and the weight."""

    windows: Float[Array, "... R KW"]
    weight: Float[Array, "K W W'"]
    key_mask: Bool[Array, "... L"] | None
    length: int  # L


class Gradients(NamedTuple):
    x: Float[Array, "... L W"]
    weight: Float[Array, "K W W'"]


@op
def forward(
    x: Float[Array, "... L W"], weight: Float[Array, "K W W'"], *, key_mask: Bool[Array, "... L"] | None = None
) -> tuple[Array, Saved]:
    """Equation (1), ``(..., R, W')`` with ``R = ceil(L / K)``; masked rows count as 0."""
    *leading, length, width = x.shape
    kernel = weight.shape[0]
    reduced = -(-length // kernel)
    padding = [(0, 0)] * len(leading) + [(0, reduced * kernel - length), (0, 0)]
    windows = np.pad(shown(x, key_mask), padding).reshape(*leading, reduced, kernel * width)
    return windows @ weight.reshape(kernel * width, -1), Saved(windows, weight, key_mask, length)  # (1)


@op
def backward(d_y: Float[Array, "... R W'"], saved: Saved) -> Gradients:
    """Equation (2)."""
    windows, weight, key_mask, length = saved
    kernel, width, out_width = weight.shape
    d_windows = d_y @ weight.reshape(kernel * width, out_width).T  # (2)
    d_x = d_windows.reshape(*d_y.shape[:-2], -1, width)[..., :length, :]  # (..., L, W)
    d_weight = windows.reshape(-1, kernel * width).T @ d_y.reshape(-1, out_width)  # (2)  (K W, W')
    return Gradients(shown(d_x, key_mask), d_weight.reshape(weight.shape))
