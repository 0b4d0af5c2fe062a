"""The Moore-Penrose pseudo-inverse ``A^+`` of small matrices, exactly.

By the singular value decomposition ``A = U diag(sigma) W^T``:

    A^+ = W diag(1/sigma) U^T                                (1)  over sigma > rcond sigma_max

Unless given, ``rcond`` is ``eps max(R, W)``, with the ``eps`` of the matrix's dtype: the decomposition's own rounding
is of this size, so that a smaller singular value cannot be told from 0.

The gradient, by hand
---------------------
Golub and Pereyra (1973), equation 4.12: where the rank does not change,

    dX = -X dA X + X X^T dA^T (I - A X) + (I - X A) dA^T X^T X,    X = A^+,

here ``dA`` and ``dX`` are small changes. ``<G, dX>`` for a gradient ``G`` of ``X``, solved for what multiplies ``dA``:

    -X^T G X^T + (I - A X) G^T X X^T + X^T X G^T (I - X A)   (2)

Where the rank changes, the pseudo-inverse jumps, and there is no gradient. Near such a place the gradient is of the
size of ``|X|^2``, and as many digits are lost.

Example
-------
>>> import numpy as np
>>> x, saved = forward(np.diag([2.0, 0.0]))
>>> print(x)
[[0.5 0. ]
 [0.  0. ]]
>>> print(backward(np.eye(2), saved).a)  # of 1/x it is -1/x^2; the rank stays 1
[[-0.25  0.  ]
 [ 0.    0.  ]]

References
----------
Golub and Pereyra (1973), "The differentiation of pseudo-inverses and nonlinear least squares problems".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array, check_array, check_saved, check_shape
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented

__all__ = ["Gradients", "Saved", "backward", "forward"]


@documented
class Saved(NamedTuple):
    """What the backward pass needs: the matrix and its pseudo-inverse."""

    a: Array  # (..., R, W)
    x: Array  # (..., W, R)


@documented
class Gradients(NamedTuple):
    """Gradient of the input of ``forward``."""

    a: Array  # (..., R, W)


def _check_forward(a: Array, *, rcond: float | None = None) -> None:
    check_array("a", a)
    if rcond is not None and not 0 <= rcond < 1:
        raise ValueError(f"rcond: expected a number with 0 <= rcond < 1, got {rcond!r}")


@door(_check_forward)
def forward(a: Array, *, rcond: float | None = None) -> tuple[Array, Saved]:
    """The pseudo-inverse ``(..., W, R)``, equation (1).

    Parameters
    ----------
    a : ndarray ``(..., R, W)``, float32 or float64
        The decomposition is computed in this dtype.
    rcond : float, optional
        Singular values up to ``rcond`` times the largest count as 0; ``eps max(R, W)`` unless given.
    """
    if rcond is None:
        rcond = max(a.shape[-2:]) * float(np.finfo(a.dtype).eps)
    u, sigma, w_t = np.linalg.svd(a, full_matrices=False)  # (..., R, K), (..., K), (..., K, W), K = min(R, W)
    counts = sigma > rcond * sigma[..., :1]
    inverse = 1 / np.where(counts, sigma, sigma.dtype.type(np.inf))  # (..., K)
    x = (w_t.swapaxes(-1, -2) * inverse[..., None, :]) @ u.swapaxes(-1, -2)  # (1)  (..., W, R)
    return x, Saved(a, x)


def _check_backward(d_x: Array, saved: Any) -> None:
    check_saved(saved, Saved)
    check_array("d_x", d_x, dtype=saved.a.dtype)
    check_shape("d_x", d_x, saved.x.shape, "(..., W, R)")


@door(_check_backward)
def backward(d_x: Array, saved: Saved) -> Gradients:
    """Gradient of ``a``, equation (2)."""
    a, x = saved
    x_t, d_x_t = x.swapaxes(-1, -2), d_x.swapaxes(-1, -2)  # (..., R, W)
    outside_columns = np.identity(a.shape[-2], a.dtype, like=a) - a @ x  # (..., R, R), I - A X
    outside_rows = np.identity(a.shape[-1], a.dtype, like=a) - x @ a  # (..., W, W), I - X A
    return Gradients(-x_t @ d_x @ x_t + outside_columns @ d_x_t @ (x @ x_t) + (x_t @ x) @ d_x_t @ outside_rows)  # (2)
