"""A matrix product in which what is not seen takes no part, whatever it contains: 0 times NaN would be NaN."""

import numpy as np

__all__ = ["product_of_seen"]


def product_of_seen(a, x):
    """``a @ x`` for ``a (..., N, L)``, ``x (..., L, W)``, without the terms where ``a`` is 0 and ``x`` not finite."""
    finite = np.isfinite(x).all(axis=-1)  # (..., L)
    if not isinstance(x, np.ndarray) or finite.all():  # a GPU is not asked
        return a @ x
    product = a @ np.where(finite[..., None], x, x.dtype.type(0))  # (..., N, W)
    for j in np.flatnonzero(~finite.reshape(-1, x.shape[-2]).all(axis=0)):
        weight = np.where(finite[..., j, None], x.dtype.type(0), a[..., j])[..., None]  # (..., N, 1)
        product += np.where(weight == 0, x.dtype.type(0), weight * x[..., j, None, :])
    return product
