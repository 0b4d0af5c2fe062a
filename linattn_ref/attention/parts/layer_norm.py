"""Layer norm (Ba et al. 2016): each row gets mean 0 and variance 1, then a gain and a bias per entry.

    y = (x - mean x) / s,   s = sqrt(var x + eps)            (1)
    norm(x) = a y + b                                        (2)  gain a and bias b, (W,)

The gradient, by hand
---------------------
With ``G`` the gradient of a row of ``norm(x)``,

    da = sum G * y,   db = sum G                             (3)  over all rows
    dy = a G,   dx = (dy - mean dy - y mean(dy * y)) / s     (4)

In (4), ``mean dy`` comes from the mean of (1): a step that is the same in all entries does not change ``y``. The last
term comes from ``s``: since ``ds / dx_i = y_i / W``, ``y = (x - mean x) / s`` loses ``y_j y_i / (W s)``, which summed
with ``dy_j`` is ``y_i mean(dy * y) / s``.

>>> x = np.array([[1.0, 2.0, 6.0]])  # mean 3, variance 14 / 3
>>> y, saved = forward(x, Params(gain=np.ones(3), bias=np.zeros(3)))
>>> print(y.round(4))
[[-0.9258 -0.4629  1.3887]]
>>> print(backward(np.array([[1.0, 0.0, 0.0]]), saved).x.round(4))
[[ 0.1763 -0.2204  0.0441]]

References
----------
Ba, Kiros and Hinton (2016), "Layer normalization".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.op import Array, Float, op

__all__ = ["Gradients", "Params", "Saved", "backward", "forward"]


class Params(NamedTuple):
    """What is learned."""

    gain: Float[Array, "W"]
    bias: Float[Array, "W"]


class Saved(NamedTuple):
    """What the backward pass needs: not ``x``, but what (1) makes of it."""

    y: Float[Array, "... W"]
    s: Float[Array, "... 1"]
    gain: Float[Array, "W"]


class Gradients(NamedTuple):
    x: Float[Array, "... W"]
    params: Params


def look(eps: Any, **_: Any) -> None:
    if eps == 0:
        raise ValueError("eps: expected a number above 0, got 0")


@op(look=look)
def forward(x: Float[Array, "... W"], params: Params, *, eps: float = 1e-5) -> tuple[Array, Saved]:
    """Equations (1) and (2) for each row."""
    gain, bias = params
    centred = x - x.mean(axis=-1, keepdims=True)
    s = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + eps)  # (1)
    y = centred / s  # (1)
    return gain * y + bias, Saved(y, s, gain)  # (2)


@op
def backward(d_out: Float[Array, "... W"], saved: Saved) -> Gradients:
    """Equations (3) and (4)."""
    y, s, gain = saved
    rows = tuple(range(y.ndim - 1))
    d_gain, d_bias = (d_out * y).sum(axis=rows), d_out.sum(axis=rows)  # (3)
    d_y = gain * d_out  # (4)
    d_x = (d_y - d_y.mean(axis=-1, keepdims=True) - y * (d_y * y).mean(axis=-1, keepdims=True)) / s  # (4)
    return Gradients(d_x, Params(d_gain, d_bias))
