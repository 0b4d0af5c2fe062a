"""The learned gate of random feature attention (Peng et al. 2021), which says for each token how much past to keep.

    g_t = sigmoid(x_t . w_g + b_g)                           (1)

The gradient, by hand
---------------------
As ``sigmoid' = g (1 - g)``, with ``dg`` the gradient of the gates, ``gate`` in `rfa.Gradients`,

    da_t = dg_t g_t (1 - g_t)                                (2)
    dx_t = da_t w_g,   dw_g = sum_t da_t x_t,   db_g = sum_t da_t                                     (3)

A gate close to 0 or to 1 learns slowly.

References
----------
Peng et al. (2021), "Random feature attention", section 3 (the gate).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array, check_array, check_shape
from linattn_ref.attention.gpu_arrays import takes_gpu_arrays
from linattn_ref.attention.shapes import sum_to_shape


class GateSaved(NamedTuple):
    """What the backward pass needs."""

    x: Array  # (..., N, E)
    w_g: Array  # (..., E)
    b_g: Array  # (...)
    gate: Array  # (..., N)


class GateGradients(NamedTuple):
    """Gradients of the inputs of :func:`gate_forward`."""

    x: Array  # (..., N, E)
    w_g: Array  # (..., E)
    b_g: Array  # (...)


@takes_gpu_arrays
def gate_forward(x: Array, w_g: Array, b_g: Array) -> tuple[Array, GateSaved]:
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
    saved : GateSaved

    Raises
    ------
    TypeError, ValueError
        Naming the argument that is of another type or shape.
    """
    b_g = np.asarray(b_g) if isinstance(b_g, np.generic) else b_g  # what arithmetic leaves of a single number
    check_array("x", x)
    check_array("w_g", w_g, ndim=1, dtype=x.dtype)
    check_array("b_g", b_g, ndim=0, dtype=x.dtype)
    check_shape("w_g", w_g, (*w_g.shape[:-1], x.shape[-1]), "(..., E)")
    check_shape("b_g", b_g, w_g.shape[:-1], "of w_g without its last axis")
    score = (x @ w_g[..., None])[..., 0] + b_g[..., None]  # (..., N)
    gate = (1 + np.tanh(score / 2)) / 2  # (1), written so that nothing overflows
    limits = np.finfo(x.dtype)
    gate = np.clip(gate, limits.tiny, 1 - limits.epsneg)  # the numbers next to 0 and 1
    return gate, GateSaved(x, w_g, b_g, gate)


@takes_gpu_arrays
def gate_backward(d_gate: Array, saved: GateSaved) -> GateGradients:
    """Gradients of :func:`gate_forward`, equations (2) and (3).

    Parameters
    ----------
    d_gate : ndarray ``(..., N)``
    saved : GateSaved
    """
    x, w_g, b_g, gate = saved
    check_array("d_gate", d_gate, ndim=1, dtype=gate.dtype)
    check_shape("d_gate", d_gate, gate.shape, "of gate")
    d_score = d_gate * gate * (1 - gate)  # (2)  (..., N)
    d_x = sum_to_shape(d_score[..., None] * w_g[..., None, :], x.shape)  # (3)
    d_w_g = sum_to_shape((d_score[..., None, :] @ x)[..., 0, :], w_g.shape)  # (3)
    d_b_g = sum_to_shape(d_score.sum(axis=-1), b_g.shape)  # (3)
    return GateGradients(d_x, d_w_g, d_b_g[...])  # an array, if it is a single number too
