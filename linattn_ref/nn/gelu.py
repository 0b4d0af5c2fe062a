"""The Gaussian error linear unit (Hendrycks and Gimpel 2016): ``x`` times the chance that a normal number is below it.

    y = x Phi(x),   Phi(x) = (1 + erf(x / sqrt 2)) / 2       (1)
    dx = dy (Phi(x) + x Phi'(x)),   Phi'(x) = exp(-x^2 / 2) / sqrt(2 pi)      (2)

What is kept is the slope, the bracket of (2), in place of ``x``: as many numbers, and the error function is not needed
again. Where ``x`` is a sum with a bias, that is added on the way. In plain text all this is
`linattn_ref.kernels.reference.gelu`, four lines.

>>> import numpy as np
>>> y, saved = forward(np.array([-1.0, 0.0, 1.0]))
>>> y.round(4), backward(np.ones(3), saved).x.round(4)
(array([-0.1587,  0.    ,  0.8413]), array([-0.0833,  0.5   ,  1.0833]))

References
----------
Hendrycks and Gimpel (2016), "Gaussian error linear units", section 2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from linattn_ref.attention.arguments import Array, check_array, check_shape
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.rooms import check_kernels, kernel_of, name_of_room
from linattn_ref.kernels import reference
from linattn_ref.nn.buffers import Work, fresh

__all__ = ["Gradients", "Saved", "backward", "forward"]


@documented
class Saved(NamedTuple):
    """What the backward pass needs."""

    slope: Array  # dy/dx, the shape of x
    kernels: Any  # the name of the room


@documented
class Gradients(NamedTuple):
    """Gradient of the input of ``forward``."""

    x: Array


def check_forward(x: Array, *, bias: Array | None = None, kernels: Any = reference, **_: Any) -> None:
    """Arguments of :func:`forward`."""
    check_array("x", x, ndim=1)
    if bias is not None:
        check_array("bias", bias, ndim=1, dtype=x.dtype)
        check_shape("bias", bias, x.shape[-1:], "of a row of x")
    check_kernels(kernels, "gelu")


@door(check_forward)
def forward(
    x: Array,
    *,
    bias: Array | None = None,
    spend: bool = False,
    keep: bool = True,
    kernels: Any = reference,
    work: Work = fresh,
) -> tuple[Array, Any]:
    """Equation (1), number by number.

    Parameters
    ----------
    x : ndarray ``(..., E)``
    bias : ndarray ``(E,)``, optional
        Added to ``x`` first. Its gradient is that of ``x``, summed over all rows.
    spend : bool
        ``x`` is not needed any more: its memory is taken for the slope.
    keep : bool
        False where there is to be no backward pass, or another pass forward before it: nothing is saved.
    kernels, work
        See `linattn_ref.nn`.
    """
    y = work(x.shape, x.dtype)
    slope = y if not keep else x if spend else work(x.shape, x.dtype)
    y, slope = kernels.gelu.forward(x, bias, out=y, slope=slope)  # (1), and the bracket of (2)
    return y, Saved(slope, name_of_room(kernels)) if keep else None


def check_backward(d_y: Array, saved: Saved, **_: Any) -> None:
    """Shape and dtype of :func:`backward`."""
    check_array("d_y", d_y, ndim=1, dtype=saved.slope.dtype)
    check_shape("d_y", d_y, saved.slope.shape, "of y")


@door(check_backward)
def backward(d_y: Array, saved: Saved, *, spend: bool = False, work: Work = fresh) -> Gradients:
    """Equation (2); with ``spend``, in the memory of ``d_y``."""
    out = d_y if spend else work(d_y.shape, d_y.dtype)
    return Gradients(kernel_of(saved.kernels, "gelu").backward(d_y, saved.slope, out=out))  # (2)
