"""The Moore-Penrose pseudo-inverse ``A^+`` of small matrices, by iteration and exactly, each with its gradient.

By iteration (Razavi et al. 2014, equation 11 of Xiong et al. 2021), products of matrices and nothing else:

    Z_0 = A^T / (|A|_1 |A|_inf)                              (1)  |A|_1, |A|_inf: largest column, row sum of |a_ij|
    T = A Z
    Z <- 1/4 Z (13 I - T (15 I - T (7 I - T)))               (2)

With ``E = I - A Z``, what is left to do, (2) says ``Z <- Z (I + E + E^2 + E^3 / 4)`` and ``E <- (3 E^3 + E^4) / 4``:
third order, once ``E`` is small. At the start it is not. A small singular value ``sigma`` of ``A`` is inverted to
``sigma / (|A|_1 |A|_inf)``, too little, and each iteration multiplies that by 13/4 until it is near ``1/sigma``; so
``log(|A|_1 |A|_inf / sigma^2) / log(13/4)`` iterations come first. Six invert a ``sigma`` of a fortieth of
``sqrt(|A|_1 |A|_inf)`` to one half; smaller ones stay too small, a gentle cut.

Exactly, by the singular value decomposition ``A = U diag(sigma) W^T``:

    A^+ = W diag(1/sigma) U^T                                (3)  over sigma > rcond sigma_max

Unless given, ``rcond`` is ``eps max(R, W)``, with the ``eps`` of the matrix's dtype: the decomposition's own rounding
is of this size, so that a smaller singular value cannot be told from 0.

The gradient of the iteration, by hand
--------------------------------------
(2) with names, ``B = 7 I - T``, ``C = 15 I - T B``, ``W = 13 I - T C``, is ``Z <- Z W / 4``. Backwards, given the
gradient ``dZ`` of the new ``Z``:

    dW = Z^T dZ / 4                                          (4)
    dC = -T^T dW,   dB = -T^T dC                             (5)
    dT = -dW C^T - dC B^T - dB                               (6)
    dA += dT Z^T,   dZ <- dZ W^T / 4 + A^T dT                (7)

and once through (1), where a norm ``n`` is the sum of one column, or row, and changes with the sign of its entries:

    dA += dZ_0^T / (|A|_1 |A|_inf),   dn = -<dZ_0, Z_0> / n  (8)

(Where two columns have the largest sum there is no derivative; the first one is taken.)

The gradient of the pseudo-inverse
----------------------------------
Golub and Pereyra (1973), equation 4.12: where the rank does not change,

    dX = -X dA X + X X^T dA^T (I - A X) + (I - X A) dA^T X^T X,    X = A^+,

here ``dA`` and ``dX`` are small changes. ``<G, dX>`` for a gradient ``G`` of ``X``, solved for what multiplies ``dA``:

    -X^T G X^T + (I - A X) G^T X X^T + X^T X G^T (I - X A)   (9)

References
----------
Golub and Pereyra (1973), "The differentiation of pseudo-inverses and nonlinear least squares problems".
Razavi, Kerayechian, Gachpazan and Shateyi (2014), "A new iterative method for finding approximate inverses of complex
matrices".
Xiong et al. (2021), "Nyströmformer", equation 11.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.attention.arguments import Array, check_array, check_shape, check_sizes

# --- By iteration ---------------------------------------------------------------------------------------------------


class IterativeSaved(NamedTuple):
    """What the backward pass needs: the matrix, and what each iteration began with."""

    a: Array  # (..., R, W)
    iterates: list[Array]  # (..., W, R) each: Z_0 and all that follow but the last
    column: NDArray[np.intp]  # (...), which column's sum is |A|_1
    row: NDArray[np.intp]  # (...), which row's sum is |A|_inf
    norms: tuple[Array, Array]  # (..., 1, 1) each, |A|_1 and |A|_inf


def iterative(a: Array, *, iterations: int = 6) -> tuple[Array, IterativeSaved]:
    """An approximation of the pseudo-inverse by matrix products, equations (1) and (2).

    Parameters
    ----------
    a : ndarray ``(..., R, W)``, float32 or float64
        Each matrix has norms of its own: what one gives does not depend on its neighbours.
    iterations : int

    Returns
    -------
    z : ndarray ``(..., W, R)``
        0 for a matrix of zeros.
    saved : IterativeSaved

    Raises
    ------
    TypeError, ValueError
        Naming the argument that is wrong.
    """
    check_array("a", a)
    check_sizes(iterations=iterations)
    column_sums, row_sums = abs(a).sum(axis=-2), abs(a).sum(axis=-1)  # (..., W), (..., R)
    norms = column_sums.max(axis=-1)[..., None, None], row_sums.max(axis=-1)[..., None, None]  # (..., 1, 1)
    z = _over(_over(a.swapaxes(-1, -2), norms[0]), norms[1])  # (1)  (..., W, R)
    iterates = []
    for _ in range(iterations):
        iterates.append(z)
        *_, w = _polynomial(a @ z)
        z = z @ w / 4  # (2)
    return z, IterativeSaved(a, iterates, column_sums.argmax(axis=-1), row_sums.argmax(axis=-1), norms)


def iterative_backward(d_z: Array, saved: IterativeSaved) -> Array:
    """Gradient of ``a (..., R, W)``, equations (4)-(8)."""
    a, iterates, column, row, norms = saved
    check_array("d_z", d_z, dtype=a.dtype)
    check_shape("d_z", d_z, iterates[0].shape, "(..., W, R)")
    d_a = np.zeros_like(a)
    for z in reversed(iterates):
        t = a @ z  # (..., R, R)
        b, c, w = _polynomial(t)
        d_w = z.swapaxes(-1, -2) @ d_z / 4  # (4)  (..., R, R)
        d_c = -t.swapaxes(-1, -2) @ d_w  # (5)
        d_b = -t.swapaxes(-1, -2) @ d_c  # (5)
        d_t = -d_w @ c.swapaxes(-1, -2) - d_c @ b.swapaxes(-1, -2) - d_b  # (6)
        d_a += d_t @ z.swapaxes(-1, -2)  # (7)
        d_z = d_z @ w.swapaxes(-1, -2) / 4 + a.swapaxes(-1, -2) @ d_t  # (7)
    d_a += _over(_over(d_z.swapaxes(-1, -2), norms[0]), norms[1])  # (8)
    d_log_norm = -(d_z * iterates[0]).sum(axis=(-2, -1), keepdims=True)  # (8)  (..., 1, 1), times n
    in_column = np.arange(a.shape[-1], like=a) == column[..., None, None]  # (..., 1, W)
    in_row = np.arange(a.shape[-2], like=a)[:, None] == row[..., None, None]  # (..., R, 1)
    d_a += _over(d_log_norm, norms[0]) * in_column * np.sign(a)  # (8)
    d_a += _over(d_log_norm, norms[1]) * in_row * np.sign(a)  # (8)
    return d_a


def _polynomial(t: Array) -> tuple[Array, Array, Array]:
    """``B = 7 I - T``, ``C = 15 I - T B`` and ``W = 13 I - T C``, ``(..., R, R)`` each."""
    identity = np.identity(t.shape[-1], t.dtype, like=t)
    b = 7 * identity - t
    c = 15 * identity - t @ b
    return b, c, 13 * identity - t @ c


def _over(x: Array, norm: Array) -> Array:
    """``x / norm``, and 0 where the norm is 0: a matrix of zeros is its own pseudo-inverse."""
    return x / np.where(norm == 0, norm.dtype.type(np.inf), norm)


# --- Exactly --------------------------------------------------------------------------------------------------------


class ExactSaved(NamedTuple):
    """What the backward pass needs: the matrix and its pseudo-inverse."""

    a: Array  # (..., R, W)
    x: Array  # (..., W, R)


def exact(a: Array, *, rcond: float | None = None) -> tuple[Array, ExactSaved]:
    """The pseudo-inverse by the singular value decomposition, equation (3).

    Parameters
    ----------
    a : ndarray ``(..., R, W)``, float32 or float64
        The decomposition is computed in this dtype.
    rcond : float, optional
        Singular values up to ``rcond`` times the largest count as 0; ``eps max(R, W)`` unless given.

    Returns
    -------
    x : ndarray ``(..., W, R)``
    saved : ExactSaved

    Raises
    ------
    TypeError, ValueError
        Naming the argument that is wrong.

    Notes
    -----
    Where the rank changes, the pseudo-inverse jumps, and there is no gradient. Near such a place the gradient is of the
    size of ``|X|^2``, and as many digits are lost.
    """
    check_array("a", a)
    if rcond is None:
        rcond = max(a.shape[-2:]) * float(np.finfo(a.dtype).eps)
    if not 0 <= rcond < 1:
        raise ValueError(f"rcond: expected a number with 0 <= rcond < 1, got {rcond!r}")
    u, sigma, w_t = np.linalg.svd(a, full_matrices=False)  # (..., R, K), (..., K), (..., K, W), K = min(R, W)
    counts = sigma > rcond * sigma[..., :1]
    inverse = 1 / np.where(counts, sigma, sigma.dtype.type(np.inf))  # (..., K)
    x = (w_t.swapaxes(-1, -2) * inverse[..., None, :]) @ u.swapaxes(-1, -2)  # (3)  (..., W, R)
    return x, ExactSaved(a, x)


def exact_backward(d_x: Array, saved: ExactSaved) -> Array:
    """Gradient of ``a (..., R, W)``, equation (9)."""
    a, x = saved
    check_array("d_x", d_x, dtype=a.dtype)
    check_shape("d_x", d_x, x.shape, "(..., W, R)")
    x_t, d_x_t = x.swapaxes(-1, -2), d_x.swapaxes(-1, -2)  # (..., R, W)
    outside_columns = np.identity(a.shape[-2], a.dtype, like=a) - a @ x  # (..., R, R), I - A X
    outside_rows = np.identity(a.shape[-1], a.dtype, like=a) - x @ a  # (..., W, W), I - X A
    return -x_t @ d_x @ x_t + outside_columns @ d_x_t @ (x @ x_t) + (x_t @ x) @ d_x_t @ outside_rows  # (9)
