"""Layer norm (Ba et al. 2016): each row is brought to mean 0 and variance 1, then scaled and shifted as learned.

    m = mean(x),   s = sqrt(mean((x - m)^2) + eps)           (1)  one number per row
    n = (x - m) / s                                          (2)
    y = gain * n + bias                                      (3)

In float32 the square of ``x - m`` is infinite from about 1e19 on: a row that spreads so far becomes ``bias``. Where its
sum is beyond float32 too, above 3e38, it becomes NaN.

The gradient, by hand
---------------------
With ``G`` the gradient of a loss with respect to ``y``, and sums over all rows, from (3)

    dgain = sum G * n,   dbias = sum G                       (4)
    dn = gain * G                                            (5)

A row enters (2) directly, through its mean and through its spread: ``dn_j/dx_i = ([i = j] - 1/W - n_i n_j / W) / s``.
The derivative is symmetric, so that

    dx = (dn - mean(dn) - n * mean(dn * n)) / s              (6)

>>> y, saved = forward(np.array([[1.0, 2.0, 6.0]]), draw(3))
>>> y.round(4), backward(np.array([[1.0, 0.0, 0.0]]), saved).x.round(4)
(array([[-0.9258, -0.4629,  1.3887]]), array([[ 0.1763, -0.2204,  0.0441]]))

References
----------
Ba et al. (2016), "Layer normalization", equation 3.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.op import Array, Float, op

__all__ = ["Gradients", "Params", "Saved", "backward", "draw", "forward"]


class Params(NamedTuple):
    gain: Float[Array, "W"]
    bias: Float[Array, "W"]


class Saved(NamedTuple):
    n: Float[Array, "... W"]
    s: Float[Array, "... 1"]
    params: Params


class Gradients(NamedTuple):
    x: Float[Array, "... W"]
    params: Params


def look(x: Any, eps: float, **_: Any) -> None:
    if x.dtype.type(eps) == 0:  # a row of equal numbers has variance 0
        raise ValueError(f"eps: expected a number above 0 in {x.dtype}, got {eps!r}")


@op(look=look)
def forward(x: Float[Array, "... W"], params: Params, *, eps: float = 1e-5) -> tuple[Array, Saved]:
    """Equations (1)-(3), row by row."""
    gain, bias = params
    centred = x - x.mean(axis=-1, keepdims=True)  # (1)
    s = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + x.dtype.type(eps))  # (1)
    n = centred / s  # (2)
    return gain * n + bias, Saved(n, s, params)  # (3)


@op
def backward(d_y: Float[Array, "... W"], saved: Saved) -> Gradients:
    """Equations (4)-(6)."""
    n, s, (gain, _) = saved
    rows = tuple(range(n.ndim - 1))
    d_gain, d_bias = (d_y * n).sum(axis=rows), d_y.sum(axis=rows)  # (4)
    d_n = gain * d_y  # (5)
    d_x = (d_n - d_n.mean(axis=-1, keepdims=True) - n * (d_n * n).mean(axis=-1, keepdims=True)) / s  # (6)
    return Gradients(d_x, Params(d_gain, d_bias))


@op
def draw(width: int, *, dtype: Any = np.float64) -> Params:
    """Return parameters to start from: gain 1 and bias 0."""
    return Params(np.ones(width, dtype), np.zeros(width, dtype))
