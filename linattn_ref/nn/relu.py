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


def check_forward(x: Array, *, bias: Array | None = None, **_: Any) -> None:
    """Arguments of :func:`forward`."""
    check_array("x", x, ndim=1)
    if bias is not None:
        check_array("bias", bias, ndim=1, dtype=x.dtype)
        check_shape("bias", bias, x.shape[-1:], "of a row of x")


@door(check_forward)
def forward(
    x: Array, *, bias: Array | None = None, spend: bool = False, keep: bool = True, work: Work = fresh, **_: Any
) -> tuple[Array, Any]:
    """Equation (1), number by number; arguments as in `gelu`, with ``spend`` in the memory of ``x``."""
    y = x if spend else work(x.shape, x.dtype)
    if bias is not None:
        x = np.add(x, bias, out=y)
    np.maximum(x, 0, out=y)  # (1)
    return y, Saved(np.greater(y, 0, out=work(y.shape, np.bool_))) if keep else None


def check_backward(d_y: Array, saved: Saved, **_: Any) -> None:
    """Shape of :func:`backward`."""
    check_array("d_y", d_y, ndim=1)
    check_shape("d_y", d_y, saved.positive.shape, "of y")


@door(check_backward)
def backward(d_y: Array, saved: Saved, *, spend: bool = False, work: Work = fresh) -> Gradients:
    """Equation (2); with ``spend``, in the memory of ``d_y``."""
    out = d_y if spend else work(d_y.shape, d_y.dtype)
    return Gradients(np.multiply(d_y, saved.positive, out=out))  # (2)
