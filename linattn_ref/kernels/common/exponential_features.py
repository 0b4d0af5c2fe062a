"""Exponential features on a scale that keeps them in range: what a backend may do faster than NumPy.

    phi(k_j) = exp(a(k_j) - r)                               (1)
    phi(q_i) = exp(a(q_i) + r - t_i),   t_i = max_c (a_c(q_i) + r_c)                                         (2)

``a`` are the exponents, ``r`` the scale of the keys, see ``rises.py``. But for the maxima all is elementwise, with
little arithmetic and much memory traffic, so the features are written over the exponents.

Where exponents are products, ``a = directions x``, and all queries see all keys, the rest of linear attention can be
done while the features are in the cache, by :func:`over_all_keys`:

    S = sum_j phi(k_j) v_j^T,   Z = sum_j phi(k_j)           (3)
    out_i = phi(q_i)^T S / phi(q_i)^T Z                      (4)
"""

import numpy as np

from linattn_ref.attention.parts.masks import divide

__all__ = ["ROWS", "largest", "of_keys", "of_queries", "over_all_keys"]

ROWS = 64  # at a time: with 8 heads and C = 256, half a megabyte of float32, which stays in the cache


def largest(exponent):
    """The largest of each column, ``(..., rows, C) -> (..., C)``."""
    return exponent.max(axis=-2)


def of_keys(exponent, r):
    """``phi (..., rows, C)``, equation (1), for a scale ``r (..., 1 or C)``."""
    for x in _some_rows(exponent):
        x -= r[..., None, :]
        np.exp(x, out=x)  # (1)
    return exponent


def of_queries(exponent, r):
    """``phi (..., rows, C)``, equation (2), for a scale ``r (..., 1 or C)``."""
    for x in _some_rows(exponent):
        x += r[..., None, :]
        x -= x.max(axis=-1, keepdims=True)
        np.exp(x, out=x)  # (2)
    return exponent


def over_all_keys(x_q, x_k, directions, v):
    """Equations (1)-(4), with ``r`` the largest exponents of the keys.

    Parameters
    ----------
    x_q, x_k, v : ndarray, ``(..., N, W)``, ``(..., L, W)``, ``(..., L, M)``
        A key with ``-inf`` in its last column is not seen.
    directions : ndarray ``(C, W)``

    Returns
    -------
    phi_q, phi_k, r, s, z, out, denominator : ndarray
        ``(..., N, C)``, ``(..., L, C)``, ``(..., C)``, ``(..., C, M)``, ``(..., C)``, ``(..., N, M)``, ``(..., N)``.
        ``r`` is ``-inf`` where no key is seen, and there ``out`` is 0.
    """
    # A product with -inf may warn of NaN where BLAS fills up with zeros, so -inf is put in afterwards.
    seen = ~np.isneginf(x_k[..., -1:])  # (..., L, 1)
    exponent = np.where(seen, x_k, x_k.dtype.type(0)) @ directions.T
    exponent = np.where(seen, exponent, exponent.dtype.type(-np.inf))
    r = largest(exponent)
    scale = np.where(np.isneginf(r), r.dtype.type(0), r)
    phi_q, phi_k = of_queries(x_q @ directions.T, scale), of_keys(exponent, scale)
    s, z = phi_k.swapaxes(-1, -2) @ v, phi_k.sum(axis=-2)  # (3)
    denominator = (phi_q @ z[..., None])[..., 0]  # (..., N)
    return phi_q, phi_k, r, s, z, divide(phi_q @ s, denominator[..., None]), denominator  # (4)


def _some_rows(x):
    """Views of ``ROWS`` rows at a time. On a GPU all at once: each piece of work costs time to start there."""
    size = ROWS if isinstance(x, np.ndarray) else x.shape[-2]
    return (x[..., start : start + size, :] for start in range(0, x.shape[-2], size))
