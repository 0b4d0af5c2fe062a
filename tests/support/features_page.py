"""Exponential features in NumPy with the arguments and results of jit's loop, which is held against them."""

import numpy as np

from linattn_ref.attention.parts.masks import divide
from linattn_ref.kernels.common.exponential_features import largest, of_keys, of_queries

__all__ = ["largest", "of_keys", "of_queries", "over_all_keys"]


def over_all_keys(x_q, x_k, directions, v):
    """Equations (1)-(4) of the loop, with ``r`` the largest exponents of the keys."""
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
