"""The affine layer: every row of ``x`` times a matrix, and a bias.

    y = x W + b                                              (1)

The gradient, by hand
---------------------
With ``G`` the gradient of a loss with respect to ``y``, and sums over all rows,

    dW = sum_i x_i G_i^T,   db = sum_i G_i                   (2)
    dx = G W^T                                               (3)

``W`` is stored as it is written here, ``(from, to)``: the transpose of PyTorch's.

>>> y, saved = forward(np.array([[1.0, 2.0]]), Params(w=np.array([[3.0], [4.0]]), b=np.array([0.5])))
>>> y, backward(np.array([[1.0]]), saved).params.w
(array([[11.5]]), array([[1.],
       [2.]]))
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array, check_array, check_shape
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.nn.buffers import Work, add_into, fresh

__all__ = ["Gradients", "Params", "Saved", "backward", "draw", "forward"]


@documented
class Params(NamedTuple):
    """What is learned."""

    w: Array  # (E, F)
    b: Array  # (F,)


@documented
class Saved(NamedTuple):
    """What the backward pass needs."""

    x: Any  # (..., E); None where it is made again for the backward pass
    params: Params


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    x: Array  # (..., E)
    params: Params


def check_forward(x: Array, params: Params, **_: Any) -> None:
    """Shapes and dtypes of :func:`forward`."""
    check_array("x", x, ndim=1)
    check_array("params.w", params.w, dtype=x.dtype)
    check_shape("params.w", params.w, (x.shape[-1], params.w.shape[-1]), "(E, F)")
    check_array("params.b", params.b, ndim=1, dtype=x.dtype)
    check_shape("params.b", params.b, params.w.shape[1:], "(F,)")


@door(check_forward)
def forward(x: Array, params: Params, *, bias: bool = True, work: Work = fresh) -> tuple[Array, Saved]:
    """Equation (1): ``(..., E) -> (..., F)``; with ``bias=False``, ``b`` is left for the next layer to add."""
    w, b = params
    y = np.matmul(x, w, out=work((*x.shape[:-1], w.shape[1]), x.dtype))  # (1)  (..., F)
    if bias:
        y += b  # (1)
    return y, Saved(x, params)


def check_backward(d_y: Array, saved: Saved, **_: Any) -> None:
    """Shapes and dtypes of :func:`backward`."""
    check_array("d_y", d_y, ndim=1, dtype=saved.params.w.dtype)
    leading = d_y.shape[:-1] if saved.x is None else saved.x.shape[:-1]
    check_shape("d_y", d_y, (*leading, saved.params.w.shape[1]), "of y")


@door(check_backward)
def backward(
    d_y: Array, saved: Saved, *, into: Params | None = None, spend: bool = False, work: Work = fresh
) -> Gradients:
    """Equations (2) and (3); with ``spend``, ``dx`` in the memory of ``x``."""
    x, (w, _) = saved
    rows, d_rows = x.reshape(-1, x.shape[-1]), d_y.reshape(-1, d_y.shape[-1])  # (rows, E), (rows, F)
    d_w = np.matmul(rows.T, d_rows, out=work(w.shape, w.dtype))  # (2)  (E, F)
    d_b = d_rows.sum(axis=0)  # (2)  (F,)
    d_x = np.matmul(d_y, w.T, out=x if spend else work(x.shape, x.dtype))  # (3)  (..., E)
    return Gradients(d_x, add_into(into, Params(d_w, d_b)))


@plain_numbers
def draw(width: int, to: int, rng: np.random.Generator, *, dtype: Any = np.float64) -> Params:
    """Parameters to start from: Glorot's uniform numbers, ``|w| <= sqrt(6 / (E + F))``, and no bias.

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
