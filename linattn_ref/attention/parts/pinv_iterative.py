"""The pseudo-inverse ``A^+`` of small matrices by iteration: products of matrices and nothing else.

    Z_0 = A^T / (|A|_1 |A|_inf)                              (1)  |A|_1, |A|_inf: largest column, row sum of |a_ij|
    T = A Z
    Z <- 1/4 Z (13 I - T (15 I - T (7 I - T)))               (2)

With ``E = I - A Z``, what is left to do, (2) says ``Z <- Z (I + E + E^2 + E^3 / 4)`` and ``E <- (3 E^3 + E^4) / 4``:
third order, once ``E`` is small. At the start it is not. A small singular value ``sigma`` of ``A`` is inverted to
``sigma / (|A|_1 |A|_inf)``, too little, and each iteration multiplies that by 13/4 until it is near ``1/sigma``; so
``log(|A|_1 |A|_inf / sigma^2) / log(13/4)`` iterations come first. Six invert a ``sigma`` of a fortieth of
``sqrt(|A|_1 |A|_inf)`` to one half; smaller ones stay too small, a gentle cut. The pseudo-inverse itself is in
`pinv_exact`.

The gradient, by hand
---------------------
(2) with names, ``B = 7 I - T``, ``C = 15 I - T B``, ``W = 13 I - T C``, is ``Z <- Z W / 4``. Backwards, given the
gradient ``dZ`` of the new ``Z``:

    dW = Z^T dZ / 4                                          (3)
    dC = -T^T dW,   dB = -T^T dC                             (4)
    dT = -dW C^T - dC B^T - dB                               (5)
    dA += dT Z^T,   dZ <- dZ W^T / 4 + A^T dT                (6)

and once through (1), where a norm ``n`` is the sum of one column, or row, and changes with the sign of its entries:

    dA += dZ_0^T / (|A|_1 |A|_inf),   dn = -<dZ_0, Z_0> / n  (7)

(Where two columns have the largest sum there is no derivative; the first one is taken.)

Example
-------
>>> import numpy as np
>>> z, saved = forward(np.diag([1.0, 0.5]))
>>> print(z.round(6))
[[1. 0.]
 [0. 2.]]
>>> print(backward(np.eye(2), saved).a.round(4))  # of 1/x it is -1/x^2
[[-1.  0.]
 [ 0. -4.]]

References
----------
Razavi, Kerayechian, Gachpazan and Shateyi (2014), "A new iterative method for finding approximate inverses of complex
matrices".
Xiong et al. (2021), "Nyströmformer: a Nyström-based algorithm for approximating self-attention", equation 14.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.parts.masks import divide
from linattn_ref.op import Array, Float, op
from linattn_ref.op.options import sized

__all__ = ["Gradients", "Saved", "backward", "forward"]


class Saved(NamedTuple):
    """What the backward pass needs: the matrix, and what each iteration began with."""

    a: Float[Array, "... R W"]
    iterates: list[Array]  # (..., W, R) each: Z_0 and all that follow but the last
    column: Any  # (...), which column's sum is |A|_1
    row: Any  # (...), which row's sum is |A|_inf
    norms: tuple[Array, Array]  # (..., 1, 1) each, |A|_1 and |A|_inf


class Gradients(NamedTuple):
    a: Float[Array, "... R W"]


@op(look=sized("iterations"))
def forward(a: Float[Array, "... R W"], *, iterations: int = 6) -> tuple[Array, Saved]:
    """Equations (1) and (2), each matrix with norms of its own; 0 for a matrix of zeros."""
    column_sums, row_sums = abs(a).sum(axis=-2), abs(a).sum(axis=-1)  # (..., W), (..., R)
    norms = column_sums.max(axis=-1)[..., None, None], row_sums.max(axis=-1)[..., None, None]  # (..., 1, 1)
    z = divide(divide(a.mT, norms[0]), norms[1])  # (1)
    iterates = []
    for _ in range(iterations):
        iterates.append(z)
        *_, w = polynomial(a @ z)
        z = z @ w / 4  # (2)
    return z, Saved(a, iterates, column_sums.argmax(axis=-1), row_sums.argmax(axis=-1), norms)


@op
def backward(d_z: Float[Array, "... W R"], saved: Saved) -> Gradients:
    """Equations (3)-(7)."""
    a, iterates, column, row, norms = saved
    d_a = np.zeros_like(a)
    for z in reversed(iterates):
        t = a @ z
        b, c, w = polynomial(t)
        d_w = z.mT @ d_z / 4  # (3)
        d_c = -t.mT @ d_w  # (4)
        d_b = -t.mT @ d_c  # (4)
        d_t = -d_w @ c.mT - d_c @ b.mT - d_b  # (5)
        d_a += d_t @ z.mT  # (6)
        d_z = d_z @ w.mT / 4 + a.mT @ d_t  # (6)
    d_a += divide(divide(d_z.mT, norms[0]), norms[1])  # (7)
    d_log_norm = -(d_z * iterates[0]).sum(axis=(-2, -1), keepdims=True)  # (7), times n
    in_column = np.arange(a.shape[-1], like=a) == column[..., None, None]  # (..., 1, W)
    in_row = np.arange(a.shape[-2], like=a)[:, None] == row[..., None, None]  # (..., R, 1)
    d_a += divide(d_log_norm, norms[0]) * in_column * np.sign(a)  # (7)
    d_a += divide(d_log_norm, norms[1]) * in_row * np.sign(a)  # (7)
    return Gradients(d_a)


def polynomial(t: Array) -> tuple[Array, Array, Array]:
    """``B = 7 I - T``, ``C = 15 I - T B`` and ``W = 13 I - T C``, ``(..., R, R)`` each."""
    identity = np.identity(t.shape[-1], t.dtype, like=t)
    b = 7 * identity - t
    c = 15 * identity - t @ b
    return b, c, 13 * identity - t @ c
