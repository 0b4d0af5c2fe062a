"""The gate of Mamba-2 (Dao and Gu 2024), Gated DeltaNet and Kimi Delta Attention: how fast the state decays per token.

    log_gate = -exp(a_log) softplus(x + dt_bias),   softplus(y) = log(1 + exp y)          (1)

``softplus(x + dt_bias)`` is a step in time, which the network chooses for each token, and ``exp(a_log)`` is a rate: the
state decays by the factor ``exp(-rate * step)``, as a linear differential equation does. The logarithm is what comes
out, since a product of many gates near 1 is a sum of small numbers, and 0 and -inf are numbers like others.

The gradient, by hand
---------------------
As ``softplus' = sigmoid``, with ``y = x + dt_bias`` and ``G`` the gradient of the log gates,

    dx = -exp(a_log) sigmoid(y) G,   d_dt_bias = sum dx,   d_a_log = sum log_gate G       (2)

summed over the entries that share a bias or a rate. The derivative of ``log_gate`` in ``a_log`` is ``log_gate`` itself.

Example
-------
>>> gate, saved = forward(np.array([-2.0, 0.0, 2.0]), np.array([0.0]), np.array([0.0]))
>>> np.exp(gate).round(3)
array([0.881, 0.5  , 0.119])

References
----------
Gu and Dao (2023), "Mamba" (``dt``).
Dao and Gu (2024), "Transformers are SSMs".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from linattn_ref.attention.parts.heads import sum_to_shape
from linattn_ref.op import Array, Float, op

__all__ = ["Gradients", "Saved", "backward", "forward"]


class Saved(NamedTuple):
    """What the backward pass needs."""

    y: Float[Array, "..."]  # x + dt_bias
    a_log: Float[Array, "#..."]
    dt_bias_shape: tuple[int, ...]
    log_gate: Float[Array, "..."]


class Gradients(NamedTuple):
    x: Float[Array, "..."]
    a_log: Float[Array, "#..."]
    dt_bias: Float[Array, "#..."]


@op
def forward(x: Float[Array, "..."], a_log: Float[Array, "#..."], dt_bias: Float[Array, "#..."]) -> tuple[Array, Saved]:
    """The log gates, equation (1), for ``x (..., N)`` or ``(..., N, C)``, one number per head or one per channel.

    ``a_log`` and ``dt_bias`` broadcast to it: for a rate and a bias of each of ``H`` heads ``(H, 1)``; or
    ``(H, 1, 1)``, and ``(H, 1, C)`` for a bias per channel.
    """
    y = x + dt_bias
    log_gate = times(-np.exp(a_log), np.logaddexp(y, y.dtype.type(0)))  # (1)
    return log_gate, Saved(y, a_log, dt_bias.shape, log_gate)


@op
def backward(d_log_gate: Float[Array, "..."], saved: Saved) -> Gradients:
    """Equation (2)."""
    y, a_log, dt_bias_shape, log_gate = saved
    sigmoid = np.exp(-np.logaddexp(-y, y.dtype.type(0)))  # by its logarithm: small ones keep their digits
    d_x = times(-np.exp(a_log), sigmoid * d_log_gate)  # (2)
    d_a_log = sum_to_shape(times(log_gate, d_log_gate), a_log.shape)  # (2)
    return Gradients(d_x, d_a_log[...], sum_to_shape(d_x, dt_bias_shape)[...])  # arrays, even of a single number


def times(x: Array, y: Array) -> Array:
    """``x y``; 0 where ``y`` is 0, even if ``x`` is infinite."""
    return np.where(y == 0, y, x) * y
