"""Layer norm (Ba et al. 2016): each row gets mean 0 and variance 1, then a gain and a bias an entry.

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

Example
-------
>>> import numpy as np
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

from typing import NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array, backward_check, check_array, check_shape, is_number
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented

__all__ = ["Gradients", "Params", "Saved", "backward", "forward"]


@documented
class Params(NamedTuple):
    """What is learned."""

    gain: Array  # (W,)
    bias: Array  # (W,)


@documented
class Saved(NamedTuple):
    """What the backward pass needs: not ``x``, but what (1) makes of it."""

    y: Array  # (..., W)
    s: Array  # (..., 1)
    gain: Array  # (W,)


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    x: Array  # (..., W)
    params: Params


def _check_forward(x: Array, params: Params, *, eps: float = 1e-5) -> None:
    check_array("x", x, ndim=1)
    if not isinstance(params, tuple) or len(params) != 2:
        raise TypeError(f"params: expected layer_norm.Params(gain, bias), got {params!r}")
    for name, array in zip(Params._fields, params, strict=True):
        check_array(name, array, ndim=1, dtype=x.dtype)
        check_shape(name, array, x.shape[-1:], "(W,)")
    if not is_number(eps) or not 0 < eps < np.inf:
        raise ValueError(f"eps: expected a number above 0, got {eps!r}")


@door(_check_forward)
def forward(x: Array, params: Params, *, eps: float = 1e-5) -> tuple[Array, Saved]:
    """Equation (2) for each row of ``x (..., W)``."""
    gain, bias = params
    centred = x - x.mean(axis=-1, keepdims=True)
    s = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + x.dtype.type(eps))  # (..., 1)
    y = centred / s  # (1)
    return gain * y + bias, Saved(y, s, gain)  # (2)


@door(backward_check(Saved, "y"))
def backward(d_out: Array, saved: Saved) -> Gradients:
    """Gradients of ``x`` and of gain and bias."""
    y, s, gain = saved
    rows = tuple(range(y.ndim - 1))
    d_gain, d_bias = (d_out * y).sum(axis=rows), d_out.sum(axis=rows)  # (3)  (W,)
    d_y = gain * d_out  # (4)
    d_x = (d_y - d_y.mean(axis=-1, keepdims=True) - y * (d_y * y).mean(axis=-1, keepdims=True)) / s  # (4)
    return Gradients(d_x, Params(d_gain, d_bias))
