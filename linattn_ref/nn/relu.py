"""The rectified linear unit.

    y = max(x, 0)                                            (1)
    dx = dy if x > 0 else 0                                  (2)

>>> y, saved = forward(np.array([-1.0, 2.0]))
>>> y, backward(np.array([1.0, 1.0]), saved).x
(array([0., 2.]), array([0., 1.]))
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array, Mask, check_array, check_shape
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.nn.buffers import Work, fresh

__all__ = ["Gradients", "Saved", "backward", "forward"]


@documented
class Saved(NamedTuple):
    """What the backward pass needs: a bit a number."""

    positive: Mask  # the shape of x


@documented
class Gradients(NamedTuple):
    """Gradient of the input of ``forward``."""

    x: Array


def check_forward(x: Array, **_: Any) -> None:
    """Dtype of :func:`forward`."""
    check_array("x", x, ndim=1)


@door(check_forward)
def forward(x: Array, *, work: Work = fresh) -> tuple[Array, Saved]:
    """Equation (1), number by number."""
    return np.maximum(x, 0, out=work(x.shape, x.dtype)), Saved(x > 0)  # (1)


def check_backward(d_y: Array, saved: Saved, **_: Any) -> None:
    """Shape of :func:`backward`."""
    check_array("d_y", d_y, ndim=1)
    check_shape("d_y", d_y, saved.positive.shape, "of y")


@door(check_backward)
def backward(d_y: Array, saved: Saved, *, work: Work = fresh) -> Gradients:
    """Equation (2)."""
    return Gradients(np.multiply(d_y, saved.positive, out=work(d_y.shape, d_y.dtype)))  # (2)
