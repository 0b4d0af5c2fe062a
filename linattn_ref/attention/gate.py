"""The learned gate of random feature attention (Peng et al. 2021), which says for each token how much past to keep.

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

from linattn_ref.attention.arguments import Array, check_array, check_saved, check_shape
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.shapes import sum_to_shape

__all__ = ["Gradients", "Saved", "backward", "forward"]


@documented
class Saved(NamedTuple):
    """What the backward pass needs."""

    x: Array  # (..., N, E)
    w_g: Array  # (..., E)
    b_g: Array  # (...)
    gate: Array  # (..., N)


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of :func:`forward`."""

    x: Array  # (..., N, E)
    w_g: Array  # (..., E)
    b_g: Array  # (...)


def _check_forward(x: Any, w_g: Any, b_g: Any) -> None:
    b_g = np.asarray(b_g) if isinstance(b_g, np.generic) else b_g
    check_array("x", x)
    check_array("w_g", w_g, ndim=1, dtype=x.dtype)
    check_array("b_g", b_g, ndim=0, dtype=x.dtype)
    check_shape("w_g", w_g, (*w_g.shape[:-1], x.shape[-1]), "(..., E)")
    check_shape("b_g", b_g, w_g.shape[:-1], "of w_g without its last axis")


@door(_check_forward)
def forward(x: Array, w_g: Array, b_g: Array) -> tuple[Array, Saved]:
    """The gate of each token, equation (1).

    Parameters
    ----------
    x : ndarray ``(..., N, E)``, float32 or float64
        What the layer got, before it made queries, keys and values of it.
    w_g, b_g : ndarray, ``(..., E)`` and ``(...)``
        Leading axes broadcast with those of ``x``: for ``H`` heads ``(H, E)`` and ``(H,)``, beside ``x (B, 1, N, E)``.

    Returns
    -------
    gate : ndarray ``(..., N)``
        Above 0 and below 1, also where the sigmoid rounds to one of them.
    saved : Saved
    """
    b_g = np.asarray(b_g, like=x)  # arithmetic leaves a number of a single one
    score = (x @ w_g[..., None])[..., 0] + b_g[..., None]  # (..., N)
    gate = (1 + np.tanh(score / 2)) / 2  # (1), written so that nothing overflows
    limits = np.finfo(x.dtype)
    gate = np.clip(gate, limits.tiny, 1 - limits.epsneg)  # the numbers next to 0 and 1
    return gate, Saved(x, w_g, b_g, gate)


def _check_backward(d_gate: Any, saved: Any) -> None:
    check_saved(saved, Saved)
    check_array("d_gate", d_gate, ndim=1, dtype=saved.gate.dtype)
    check_shape("d_gate", d_gate, saved.gate.shape, "of gate")


@door(_check_backward)
def backward(d_gate: Array, saved: Saved) -> Gradients:
    """Gradients of :func:`forward`, equations (2) and (3).

    Parameters
    ----------
    d_gate : ndarray ``(..., N)``
    saved : Saved
    """
    x, w_g, b_g, gate = saved
    d_score = d_gate * gate * (1 - gate)  # (2)  (..., N)
    d_x = sum_to_shape(d_score[..., None] * w_g[..., None, :], x.shape)  # (3)
    d_w_g = sum_to_shape((d_score[..., None, :] @ x)[..., 0, :], w_g.shape)  # (3)
    d_b_g = sum_to_shape(d_score.sum(axis=-1), b_g.shape)  # (3)
    return Gradients(d_x, d_w_g, d_b_g[...])  # an array, if it is a single number too
