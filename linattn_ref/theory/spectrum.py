"""How fast the singular values of an attention matrix fall: the spectrum behind "self-attention is low rank".

With the singular values ``sigma_1 >= sigma_2 >= ... >= 0`` of the context mapping matrix ``P (N, L)``, the curve of
the paper's Figure 1 is the normalised cumulative singular value

    c_k = sum_{i<=k} sigma_i / sum_i sigma_i                 (1)

Near 1 for a small ``k``, the first ``k`` singular triples hold most of the matrix; for the identity it is ``k / N``.
Note what (1) is not: it adds singular values, not their squares, so ``1 - c_k`` is the error of the truncated SVD in
the *nuclear* norm, relative to that of ``P``. Its Frobenius and spectral errors are other numbers: see
`linattn_ref.theory.eckart_young`.

References
----------
Wang et al. (2020), "Linformer: self-attention with linear complexity", section 3 and Figure 1.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from linattn_ref.op import Array, plain_numbers
from linattn_ref.op.options import check_choice
from linattn_ref.op.shapes import check_array

__all__ = ["METHODS", "Method", "check_values", "cumulative_share", "rank_for_share", "singular_values"]

Method = Literal["svd", "gram"]
METHODS: tuple[Method, ...] = get_args(Method)


def singular_values(matrix: Array, *, method: Method = "svd") -> Array:
    """Singular values of a matrix or of each matrix of a stack, largest first, in the matrix's own dtype.

    Parameters
    ----------
    matrix : ndarray ``(..., N, L)``, float32 or float64, finite
    method : {"svd", "gram"}
        ``"svd"``: LAPACK's ``gesdd``, values only. Every value is right to about machine epsilon times the largest one.

        ``"gram"``: square roots of the eigenvalues of the Gram matrix of the smaller side. At 512 x 512 it takes 0.6
        of the time of ``"svd"`` in float64, and 0.8 to 0.9 in float32. It squares the condition number: a value is
        right only down to the square root of machine epsilon times the largest one. Measured in float32 on 20 softmax
        matrices of that size, of four temperatures: single values are off by up to 5e-5 of the largest (``"svd"``:
        1e-6), the curve (1), where that averages out, by up to 1.4e-5 (1e-6). On a pretrained network's heads with many
        tiny singular values the curve is off by up to 7e-4 (6e-7).

    Returns
    -------
    ndarray ``(..., min(N, L))``

    Raises
    ------
    TypeError, ValueError
        Not a float array of at least two axes, NaN or infinity in it, or an unknown method.
    """
    check_array("matrix", matrix)
    check_choice("method", method, METHODS)
    if not np.isfinite(matrix).all():
        raise ValueError("matrix: expected finite entries, got NaN or infinity")
    values = np.empty((*matrix.shape[:-2], min(matrix.shape[-2:])), matrix.dtype)  # (..., K)
    of_one = _values_by_svd if method == "svd" else _values_by_gram
    for index in np.ndindex(matrix.shape[:-2]):
        values[index] = of_one(matrix[index])
    return values


def _values_by_svd(matrix: Array) -> Array:
    return scipy.linalg.svdvals(matrix.T, check_finite=False)  # transposed: LAPACK's own order


def _values_by_gram(matrix: Array) -> Array:
    n_rows, n_columns = matrix.shape
    _, exponent = np.frexp(abs(matrix).max())
    matrix = np.ldexp(matrix, -exponent)  # exact, and no square leaves the range of floats
    gram = matrix.T @ matrix if n_rows >= n_columns else matrix @ matrix.T  # (K, K)
    eigenvalues = scipy.linalg.eigvalsh(gram, overwrite_a=True, check_finite=False)  # smallest first
    return np.ldexp(np.sqrt(np.maximum(eigenvalues[::-1], 0)), exponent)  # rounding may leave negative ones


def cumulative_share(values: Array) -> Array:
    """The normalised cumulative singular value (1) at every index.

    Parameters
    ----------
    values : ndarray ``(..., K)``
        Singular values, largest first, not all 0.

    Returns
    -------
    ndarray ``(..., K)``
        Not decreasing; entry ``k - 1`` is ``c_k``, the last one is exactly 1.
    """
    check_values(values)
    sums = np.cumsum(values, axis=-1)
    if not (sums[..., -1] > 0).all():
        raise ValueError("values: the share is not defined where all singular values are 0")
    return sums / sums[..., -1:]  # (1)


@plain_numbers
def rank_for_share(values: Array, share: float) -> NDArray[np.int64]:
    """The smallest ``k`` with ``c_k >= share``: how many singular triples hold that share of the spectrum.

    Parameters
    ----------
    values : ndarray ``(..., K)``
        Singular values, largest first.
    share : float
        ``0 < share <= 1``.

    Returns
    -------
    ndarray of int64 ``(...)``
    """
    if not 0 < share <= 1:
        raise ValueError(f"share: expected 0 < share <= 1, got {share!r}")
    return 1 + np.argmax(cumulative_share(values) >= share, axis=-1)


def check_values(values: Array) -> None:
    """``values`` are singular values ``(..., K)``."""
    check_array("values", values, ndim=1)
    if not (np.isfinite(values).all() and (values >= 0).all() and (np.diff(values, axis=-1) <= 0).all()):
        raise ValueError("values: expected singular values: finite, not negative, largest first")
