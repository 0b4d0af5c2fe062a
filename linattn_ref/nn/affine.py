"""The affine layer: every row of ``x`` times a matrix, and a bias.

    y = x W + b                                              (1)

The gradient, by hand
---------------------
With ``G`` the gradient of a loss with respect to ``y``, and sums over all rows,

    dW = sum_i x_i^T G_i,   db = sum_i G_i                   (2)
    dx = G W^T                                               (3)

``W`` is stored as it is written here, ``(E, F)``: the transpose of PyTorch's.

>>> y, saved = forward(np.array([[1.0, 2.0]]), Params(w=np.array([[3.0], [4.0]]), b=np.array([0.5])))
>>> y, backward(np.array([[1.0]]), saved).params.w
(array([[11.5]]), array([[1.],
       [2.]]))
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.op import Array, Float, op

__all__ = ["Gradients", "Params", "Saved", "backward", "draw", "forward"]


class Params(NamedTuple):
    w: Float[Array, "E F"]
    b: Float[Array, "F"]


class Saved(NamedTuple):
    x: Float[Array, "... E"]
    params: Params


class Gradients(NamedTuple):
    x: Float[Array, "... E"]
    params: Params


@op
def forward(x: Float[Array, "... E"], params: Params) -> tuple[Array, Saved]:
    """Equation (1): ``(..., E)`` to ``(..., F)``."""
    w, b = params
    return x @ w + b, Saved(x, params)  # (1)


@op
def backward(d_y: Float[Array, "... F"], saved: Saved) -> Gradients:
    """Equations (2) and (3)."""
    x, (w, _) = saved
    rows, d_rows = x.reshape(-1, x.shape[-1]), d_y.reshape(-1, d_y.shape[-1])
    d_w, d_b = rows.T @ d_rows, d_rows.sum(axis=0)  # (2)
    d_x = d_y @ w.T  # (3)
    return Gradients(d_x, Params(d_w, d_b))


@op
def draw(width: int, to: int, rng: np.random.Generator, *, dtype: Any = np.float64) -> Params:
    """Draw parameters to start from: Glorot's uniform numbers, ``|w| <= sqrt(6 / (E + F))``, and no bias.

    Parameters
    ----------
    width, to : int
        ``E`` and ``F``.
    rng : numpy.random.Generator
    dtype
        float32 or float64.
    """
    limit = np.sqrt(6 / (width + to))
    return Params(rng.uniform(-limit, limit, (width, to)).astype(dtype), np.zeros(to, dtype))
