"""The learned gate of random feature attention (Peng et al. 2021) decides for each token how much of the past to keep.

    g_t = sigmoid(x_t . w_g + b_g)                           (1)

The gradient, by hand
---------------------
As ``sigmoid' = g (1 - g)``, with ``dg`` the gradient of the gates, ``gate`` in `rfa.Gradients`,

    da_t = dg_t g_t (1 - g_t)                                (2)
    dx_t = da_t w_g,   dw_g = sum_t da_t x_t,   db_g = sum_t da_t                                     (3)

A gate close to 0 or to 1 learns slowly.

Example
-------
A score of 0 keeps half of the past.

>>> forward(np.array([[1.0, -1.0], [2.0, 2.0]]), np.array([0.5, 0.5]), np.array(0.0))[0].round(3)
array([0.5  , 0.881])

References
----------
Peng et al. (2021), "Random feature attention", section 3 (the gate).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.parts.heads import sum_to_shape
from linattn_ref.op import Array, Float, op

__all__ = ["Gradients", "Saved", "backward", "forward"]


class Saved(NamedTuple):
    """What the backward pass needs."""

    x: Float[Array, "*... N E"]
    w_g: Float[Array, "*... E"]
    b_g: Float[Array, "*..."]
    gate: Float[Array, "... N"]


class Gradients(NamedTuple):
    x: Float[Array, "*... N E"]
    w_g: Float[Array, "*... E"]
    b_g: Float[Array, "*..."]


def look(x: Any, w_g: Any, b_g: Any) -> None:
    of_x, of_gate = x.shape[:-2], w_g.shape[:-1]
    try:
        np.broadcast_shapes(of_x, of_gate)
    except ValueError:
        raise ValueError(f"w_g: expected leading axes that broadcast with {of_x}, those of x, got {of_gate}") from None
    if b_g.shape != w_g.shape[:-1]:
        raise ValueError(f"b_g: expected the shape of w_g without its last axis, {w_g.shape[:-1]}, got {b_g.shape}")


@op(look=look)
def forward(x: Float[Array, "... N E"], w_g: Float[Array, "*... E"], b_g: Float[Array, "*..."]) -> tuple[Array, Saved]:
    """The gate of each token, equation (1): above 0 and below 1, also where the sigmoid rounds to one of them.

    ``x`` is what the layer got, before it made queries, keys and values of it. Leading axes of ``w_g`` and ``b_g``
    broadcast with those of ``x``: for ``H`` heads ``(H, E)`` and ``(H,)`` with ``x (B, 1, N, E)``.
    """
    score = (x @ w_g[..., None])[..., 0] + b_g[..., None]  # (..., N)
    gate = np.exp(-np.logaddexp(-score, score.dtype.type(0)))  # (1), by its logarithm: small gates keep their digits
    limits = np.finfo(x.dtype)
    gate = np.clip(gate, limits.tiny, 1 - limits.epsneg)  # the numbers next to 0 and 1
    return gate, Saved(x, w_g, b_g, gate)


@op
def backward(d_gate: Float[Array, "... N"], saved: Saved) -> Gradients:
    """Equations (2) and (3)."""
    x, w_g, b_g, gate = saved
    d_a = d_gate * gate * (1 - gate)  # (2)
    d_x = sum_to_shape(d_a[..., None] * w_g[..., None, :], x.shape)  # (3)
    d_w_g = sum_to_shape((d_a[..., None, :] @ x)[..., 0, :], w_g.shape)  # (3)
    d_b_g = sum_to_shape(d_a.sum(axis=-1), b_g.shape)  # (3)
    return Gradients(d_x, d_w_g, d_b_g[...])  # an array even where it holds a single number
