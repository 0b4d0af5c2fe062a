"""The Gaussian error linear unit (Hendrycks and Gimpel 2016): ``x`` times the chance that a normal number is below it.

    y = x Phi(x),   Phi(x) = (1 + erf(x / sqrt 2)) / 2       (1)
    dx = dy (Phi(x) + x Phi'(x)),   Phi'(x) = exp(-x^2 / 2) / sqrt(2 pi)      (2)

What is kept is the slope, the bracket of (2), in place of ``x``: as many numbers, and the error function is not needed
again.

>>> y, saved = forward(np.array([-1.0, 0.0, 1.0]))
>>> y.round(4), backward(np.ones(3), saved).x.round(4)
(array([-0.1587,  0.    ,  0.8413]), array([-0.0833,  0.5   ,  1.0833]))

References
----------
Hendrycks and Gimpel (2016), "Gaussian error linear units", section 2.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array, check_array, check_shape
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.nn.buffers import Work, fresh

__all__ = ["Gradients", "Saved", "backward", "forward"]


@documented
class Saved(NamedTuple):
    """What the backward pass needs."""

    slope: Array  # dy/dx, the shape of x


@documented
class Gradients(NamedTuple):
    """Gradient of the input of ``forward``."""

    x: Array


def check_forward(x: Array, **_: Any) -> None:
    """Dtype of :func:`forward`."""
    check_array("x", x, ndim=1)


@door(check_forward)
def forward(x: Array, *, work: Work = fresh) -> tuple[Array, Saved]:
    """Equation (1), number by number, by SciPy's error function."""
    from scipy.special import erf

    y, slope = work(x.shape, x.dtype), work(x.shape, x.dtype)
    np.multiply(x, x, out=slope)
    np.exp(np.multiply(slope, -0.5, out=slope), out=slope)
    slope *= x
    slope *= 1 / math.sqrt(2 * math.pi)  # x Phi'(x)
    erf(np.multiply(x, math.sqrt(0.5), out=y), out=y)
    y += 1
    y *= 0.5  # Phi(x)
    slope += y  # (2)
    y *= x  # (1)
    return y, Saved(slope)


def check_backward(d_y: Array, saved: Saved, **_: Any) -> None:
    """Shape and dtype of :func:`backward`."""
    check_array("d_y", d_y, ndim=1, dtype=saved.slope.dtype)
    check_shape("d_y", d_y, saved.slope.shape, "of y")


@door(check_backward)
def backward(d_y: Array, saved: Saved, *, work: Work = fresh) -> Gradients:
    """Equation (2)."""
    return Gradients(np.multiply(d_y, saved.slope, out=work(d_y.shape, d_y.dtype)))  # (2)
