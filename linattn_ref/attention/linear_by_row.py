"""Causal linear attention one position after the other: equations (3)-(9) of `linear` as they stand.

What every kernel room computes as ``causal_product.normalised_forward`` and ``normalised_backward``, with one state at
a time. For reading and for tests: a loop in Python over the positions.
"""

from __future__ import annotations

import numpy as np

from linattn_ref.attention.arguments import Array
from linattn_ref.kernels.reference.division import divide

__all__ = ["by_row", "by_row_backward"]


def by_row(phi_q: Array, phi_k: Array, v: Array, s: Array, z: Array, eps: float) -> tuple[Array, Array, Array, Array]:
    """Equations (4) and (3).

    Parameters
    ----------
    phi_q, phi_k, v : ndarray, ``(..., N, C)``, ``(..., N, C)``, ``(..., N, M)``
    s, z : ndarray, ``(..., C, M)``, ``(..., C)``
        ``S_0`` and ``Z_0``.
    eps : float

    Returns
    -------
    out, denominator, s, z : ndarray, ``(..., N, M)``, ``(..., N)``, ``(..., C, M)``, ``(..., C)``
        ``s`` and ``z`` are ``S_N`` and ``Z_N``.
    """
    s, z, out, denominator = s.copy(), z.copy(), np.empty_like(v), np.empty_like(v[..., 0])
    for i in range(v.shape[-2]):
        s += phi_k[..., i, :, None] * v[..., i, None, :]  # (4)  (..., C, M)
        z += phi_k[..., i, :]  # (4)  (..., C)
        denominator[..., i] = (phi_q[..., i, :] * z).sum(axis=-1) + eps
        out[..., i, :] = divide((phi_q[..., i, None, :] @ s)[..., 0, :], denominator[..., i])  # (3)  (..., M)
    return out, denominator, s, z


def by_row_backward(
    d_out: Array,
    d_s: Array,
    d_z: Array,
    *,
    phi_q: Array,
    phi_k: Array,
    v: Array,
    s: Array,
    z: Array,
    out: Array,
    denominator: Array,
) -> tuple[Array, Array, Array, Array, Array]:
    """Equations (5)-(9).

    Parameters
    ----------
    d_out, d_s, d_z : ndarray, ``(..., N, M)``, ``(..., C, M)``, ``(..., C)``
        Gradients of what :func:`by_row` returned.
    phi_q, phi_k, v, s, z, out, denominator
        What it was given, and what it returned.

    Returns
    -------
    d_phi_q, d_phi_k, d_v, d_s, d_z : ndarray
        Shaped like their inputs.
    """
    (s, z, d_s, d_z), n = (x.copy() for x in (s, z, d_s, d_z)), range(v.shape[-2])
    d_phi_q, d_phi_k, d_v = np.empty_like(phi_q), np.empty_like(phi_k), np.empty_like(v)
    d_n = divide(d_out, denominator)  # (5)  (..., N, M)
    d_d = -(d_n * out).sum(axis=-1, keepdims=True)  # (5)  (..., N, 1)
    for i in n:
        s += phi_k[..., i, :, None] * v[..., i, None, :]  # (4)
        z += phi_k[..., i, :]  # (4)
        d_phi_q[..., i, :] = (s @ d_n[..., i, :, None])[..., 0] + z * d_d[..., i, :]  # (6)
    for i in reversed(n):
        d_s += phi_q[..., i, :, None] * d_n[..., i, None, :]  # (7)
        d_z += phi_q[..., i, :] * d_d[..., i, :]  # (7)
        d_phi_k[..., i, :] = (d_s @ v[..., i, :, None])[..., 0] + d_z  # (8)
        d_v[..., i, :] = (phi_k[..., i, None, :] @ d_s)[..., 0, :]  # (9)
    return d_phi_q, d_phi_k, d_v, d_s, d_z
