"""A long short-term memory (LSTM), from the first step to the last: a network with a memory.

    a_t = x_t W + h_(t-1) U + b                              (1)  (4 H,), the parts i, f, g and o
    i, f, o = sigma(a^i), sigma(a^f), sigma(a^o),   g = tanh(a^g)            (2)
    c_t = f_t c_(t-1) + i_t g_t                              (3)
    h_t = o_t tanh(c_t)                                      (4)

All products in (3) and (4) are unit by unit. ``c`` is the memory: the gate ``f`` says how much of it stays, ``i`` how
much of the new ``g`` comes in, ``o`` how much is passed on. ``h_0`` and ``c_0`` are 0 unless given.

The gradient, by hand: backward through time
--------------------------------------------
Let ``G_t`` be the gradient of ``h_t`` from outside. ``h_t`` acts on the step after through (1), and ``c_t`` through
(3), besides (4). So, from the last step to the first,

    dh_t = G_t + da_(t+1) U^T                                (5)
    dc_t = dh_t o_t (1 - tanh(c_t)^2) + f_(t+1) dc_(t+1)     (6)
    da^i_t = dc_t g_t i_t (1 - i_t),   da^f_t = dc_t c_(t-1) f_t (1 - f_t)
    da^g_t = dc_t i_t (1 - g_t^2),     da^o_t = dh_t tanh(c_t) o_t (1 - o_t)                     (7)

and the rest is that of an affine layer, all steps together:

    dx_t = da_t W^T,   dW = sum x_t^T da_t,   dU = sum h_(t-1)^T da_t,   db = sum da_t           (8)

Before the first step, (5) and (6) leave ``dh_0 = da_1 U^T`` and ``dc_0 = f_1 dc_1``.

Along ``c``, (6) multiplies by ``f`` alone, which can be near to 1: that is why the gradient of what came long ago does
not vanish. `linattn_ref.nn.lstm` runs one of these ahead and another one back.

>>> one = Params(np.ones((1, 4)), np.ones((1, 4)), np.zeros(4))
>>> h, saved = forward(np.ones((2, 1, 1)), one)
>>> h.ravel().round(3), backward(np.ones((2, 1, 1)), saved).params.b.round(3)
(array([0.37 , 0.651]), array([0.171, 0.024, 0.321, 0.255]))

References
----------
Hochreiter and Schmidhuber (1997), "Long short-term memory"; the gate ``f`` is of Gers, Schmidhuber and Cummins (2000),
"Learning to forget".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.op import Array, Float, op

__all__ = ["Gradients", "Params", "Saved", "backward", "forward"]


class Params(NamedTuple):
    """The columns are those of i, then f, g and o."""

    w: Float[Array, "E K"]  # K = 4 H
    u: Float[Array, "H K"]
    b: Float[Array, "K"]  # the sum of PyTorch's two


class Saved(NamedTuple):
    x: Float[Array, "T B E"]
    h: Float[Array, "S B H"]  # S = T + 1, from h_0 on
    c: Float[Array, "S B H"]
    gates: Float[Array, "T B K"]  # i, f, g and o
    params: Params
    given: tuple[bool, bool]  # h_0, c_0


class Gradients(NamedTuple):
    x: Float[Array, "T B E"]
    params: Params
    h0: Float[Array, "B H"] | None = None  # where forward was given one
    c0: Float[Array, "B H"] | None = None


def look(params: Any, name: str = "params", **_: Any) -> None:
    h, k = params.u.shape
    if k != 4 * h:
        raise ValueError(f"{name}.u: expected shape (H, 4 H) = {(h, 4 * h)}, got {(h, k)}")


@op(look=look)
def forward(
    x: Float[Array, "T B E"],
    params: Params,
    h0: Float[Array, "B H"] | None = None,
    c0: Float[Array, "B H"] | None = None,
) -> tuple[Array, Saved]:
    """Equations (1)-(4): ``(T, B, E)`` to ``(T, B, H)``."""
    w, u, b = params
    h = np.empty((len(x) + 1, x.shape[1], len(u)), x.dtype)
    c, gates = np.empty_like(h), np.empty((*x.shape[:2], len(b)), x.dtype)
    h[0], c[0] = (0 if start is None else start for start in (h0, c0))
    for t in range(len(x)):
        i, f, g, o = np.split(x[t] @ w + b + h[t] @ u, 4, axis=-1)  # (1)  (B, H)
        i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)  # (2)
        c[t + 1] = f * c[t] + i * g  # (3)
        h[t + 1] = o * np.tanh(c[t + 1])  # (4)
        gates[t] = np.concatenate([i, f, g, o], axis=-1)
    return h[1:], Saved(x, h, c, gates, params, (h0 is not None, c0 is not None))


@op
def backward(d_h: Float[Array, "T B H"], saved: Saved) -> Gradients:
    """Equations (5)-(8)."""
    x, h, c, gates, (w, u, _), (has_h0, has_c0) = saved
    d_a, d_c, later = np.empty_like(gates), np.zeros_like(c[0]), np.zeros_like(c[0])
    for t in reversed(range(len(gates))):
        i, f, g, o = np.split(gates[t], 4, axis=-1)  # (B, H)
        tanh_c = np.tanh(c[t + 1])
        d = d_h[t] + later  # (5)
        d_c = d_c + d * o * (1 - tanh_c * tanh_c)  # (6)
        d_i, d_f = d_c * g * i * (1 - i), d_c * c[t] * f * (1 - f)  # (7)
        d_g, d_o = d_c * i * (1 - g * g), d * tanh_c * o * (1 - o)  # (7)
        d_a[t] = np.concatenate([d_i, d_f, d_g, d_o], axis=-1)
        d_c, later = d_c * f, d_a[t] @ u.T  # (6) and (5), for the step before
    rows, inputs, states = (z.reshape(-1, z.shape[-1]) for z in (d_a, x, h[:-1]))  # (T B, K), (T B, E), (T B, H)
    d_params = Params(inputs.T @ rows, states.T @ rows, rows.sum(axis=0))  # (8)
    return Gradients(d_a @ w.T, d_params, later if has_h0 else None, d_c if has_c0 else None)  # (8)


def sigmoid(x: Array) -> Array:
    """``1 / (1 + e^-x)``, by its logarithm, which cannot overflow."""
    return np.exp(-np.logaddexp(-x, x.dtype.type(0)))
