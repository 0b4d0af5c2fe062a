"""Layer norm (Ba et al. 2016) of a sum, where the sum is needed too: the step from one part of a block to the next.

    h = x + a                                                (1)
    y = (h - mean h) / s,   s = sqrt(var h + eps)            (2)
    norm(h) = gain y + bias                                  (3)

In one pass over the memory, because all three have little arithmetic. Without ``a`` it is the norm of ``x``, and as
that it stands with its derivation in `linattn_ref.attention.parts.layer_norm`. The plain text of this one is
`linattn_ref.kernels.reference.layer_norm`.

The gradient, by hand
---------------------
With ``G`` the gradient of ``norm(h)``, and ``P`` one that reaches ``h`` past the norm,

    dgain = sum G * y,   dbias = sum G,   dy = gain G                         (4)  sums over all rows
    dx = da = dh = P + (dy - mean dy - y mean(dy * y)) / s                    (5)

What is kept is ``h``, which the block goes on with anyway, and two numbers a row: ``y`` is made again. So can the
result be, (3), by :func:`recompute`, and who needs it in the backward pass does not have to keep it.

>>> x, params = np.array([[1.0, 2.0, 6.0]]), draw(3)
>>> out, saved = forward(x - 1, params, added=np.ones((1, 3)))
>>> out.round(4), saved.total
(array([[-0.9258, -0.4629,  1.3887]]), array([[1., 2., 6.]]))
>>> backward(np.array([[1.0, 0.0, 0.0]]), saved).x.round(4)
array([[ 0.1763, -0.2204,  0.0441]])
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array, check_array, check_shape, is_number
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.parts.layer_norm import Gradients, Params
from linattn_ref.attention.rooms import check_kernels, kernel_of, name_of_room
from linattn_ref.kernels import reference
from linattn_ref.nn.buffers import Work, add_into, fresh

__all__ = ["Gradients", "Params", "Saved", "backward", "draw", "forward", "recompute"]


@documented
class Saved(NamedTuple):
    """What the backward pass needs."""

    total: Array  # (..., W), h
    mean: Array  # (..., 1), of h
    s: Array  # (..., 1)
    params: Params  # (W,), (W,)
    eps: float
    kernels: Any  # the name of the room


def check_forward(
    x: Array, params: Params, *, added: Array | None = None, eps: float = 1e-5, kernels: Any = reference, **_: Any
) -> None:
    """Arguments of :func:`forward`."""
    check_array("x", x, ndim=1)
    if added is not None:
        check_array("added", added, ndim=1, dtype=x.dtype)
        check_shape("added", added, x.shape, "of x")
    if not isinstance(params, tuple) or len(params) != 2:
        raise TypeError(f"params: expected layer_norm.Params(gain, bias), got {params!r}")
    for name, array in zip(Params._fields, params, strict=True):
        check_array(name, array, ndim=1, dtype=x.dtype)
        check_shape(name, array, x.shape[-1:], "(W,)")
    if not is_number(eps) or not 0 < eps < np.inf:
        raise ValueError(f"eps: expected a number above 0, got {eps!r}")
    check_kernels(kernels, "layer_norm")


@door(check_forward)
def forward(
    x: Array,
    params: Params,
    *,
    added: Array | None = None,
    eps: float = 1e-5,
    spend: bool = False,
    kernels: Any = reference,
    work: Work = fresh,
) -> tuple[Array, Saved]:
    """Equations (1)-(3), for each row of ``x (..., W)``.

    Parameters
    ----------
    x, params, kernels, work
        See `linattn_ref.nn`.
    added : ndarray ``(..., W)``, optional
        ``a``; the sum is ``saved.total``.
    eps : float
    spend : bool
        ``added`` is not needed any more: its memory is taken for the sum.
    """
    total = added if added is None or spend else work(x.shape, x.dtype)
    total, out, mean, s = kernels.layer_norm.forward(
        x, added, *params, eps, total=total, out=work(x.shape, x.dtype)
    )  # (1)-(3)
    return out, Saved(total, mean, s, params, eps, name_of_room(kernels))


def check_backward(d_y: Array, saved: Saved, *, past: Array | None = None, **_: Any) -> None:
    """Shapes and dtypes of :func:`backward`."""
    for name, array in (("d_y", d_y), ("past", past)):
        if array is not None:
            check_array(name, array, ndim=1, dtype=saved.total.dtype)
            check_shape(name, array, saved.total.shape, "of y")


@door(check_backward)
def backward(
    d_y: Array,
    saved: Saved,
    *,
    past: Array | None = None,
    into: Params | None = None,
    out: Array | None = None,
    work: Work = fresh,
) -> Gradients:
    """Equations (4) and (5).

    Parameters
    ----------
    d_y, saved, into, work
        See `linattn_ref.nn`.
    past : ndarray ``(..., W)``, optional
        ``P``.
    out : ndarray ``(..., W)``, optional
        For the gradient of ``x``, which is that of ``added`` too; it may be ``d_y`` or ``past`` itself.
    """
    total, mean, s, (gain, _), _, kernels = saved
    out = work(total.shape, total.dtype) if out is None else out
    d_x, *d_params = kernel_of(kernels, "layer_norm").backward(d_y, past, total, mean, s, gain, d_total=out)  # (4), (5)
    return Gradients(d_x, add_into(into, Params(*d_params)))


def recompute(saved: Saved, *, work: Work = fresh) -> Array:
    """What :func:`forward` gave, equations (2) and (3), from ``h``: ``(..., W)``."""
    total, _, _, params, eps, kernels = saved
    out = work(total.shape, total.dtype)
    return kernel_of(kernels, "layer_norm").forward(total, None, *params, eps, out=out)[1]  # (2), (3)


def draw(width: int, *, dtype: Any = np.float64) -> Params:
    """Parameters to start from: gain 1 and bias 0."""
    return Params(np.ones(width, dtype), np.zeros(width, dtype))
