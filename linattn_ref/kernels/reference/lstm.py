"""The loop of an LSTM through time and back, as `linattn_ref.nn.lstm` derives it.

a_t = x_t W + b + h_(t-1) U                              (1)
i, f, o = sigma(a^i, a^f, a^o),   g = tanh(a^g)          (2)
c_t = f_t c_(t-1) + i_t g_t,   h_t = o_t tanh(c_t)       (3), (4)
dh_t = G_t + da_(t+1) U^T                                (6)
dc_t = dh_t o_t (1 - tanh(c_t)^2) + f_(t+1) dc_(t+1)     (7)
da_t                                                     (8)
dx_t = da_t W^T,   dW = sum x_t^T da_t,   dU = sum h_(t-1)^T da_t,   db = sum da_t           (9)
"""

import numpy as np

__all__ = ["backward", "forward"]


def forward(x, w, u, b, *, work=np.empty):
    """(1) to (4), all steps.

    Parameters
    ----------
    x : ndarray ``(T, B, E)``
    w, u, b : ndarray ``(E, 4 H)``, ``(H, 4 H)``, ``(4 H,)``
        The columns of i, then those of f, g and o.
    work : callable
        Gives an array of a shape and dtype, in which may be anything.

    Returns
    -------
    h, c : ndarray ``(T + 1, B, H)``
        The first of them, before any step, are 0.
    gates : ndarray ``(T, B, 4 H)``
        i, f, g and o.
    """
    h, c = work((2, len(x) + 1, x.shape[1], len(u)), x.dtype)
    gates = work((*x.shape[:2], len(b)), x.dtype)
    h[0] = c[0] = 0
    for t in range(len(x)):
        i, f, g, o = np.split(x[t] @ w + b + h[t] @ u, 4, axis=-1)  # (1)  (B, H)
        i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)  # (2)
        c[t + 1] = f * c[t] + i * g  # (3)
        h[t + 1] = o * np.tanh(c[t + 1])  # (4)
        gates[t] = np.concatenate([i, f, g, o], axis=-1)
    return h, c, gates


def backward(d_h, x, w, u, h, c, gates, *, work=np.empty):
    """The gradients of ``x``, ``w``, ``u`` and ``b``.

    Parameters
    ----------
    d_h : ndarray ``(T, B, H)``
        ``G``.
    x, w, u, h, c, gates, work
        Those of :func:`forward`.
    """
    d_a, d_c, past = work(gates.shape, gates.dtype), np.zeros_like(c[0]), np.zeros_like(c[0])
    for t in reversed(range(len(gates))):
        i, f, g, o = np.split(gates[t], 4, axis=-1)  # (B, H)
        tanh_c = np.tanh(c[t + 1])
        d = d_h[t] + past  # (6)
        d_c = d_c + d * o * (1 - tanh_c * tanh_c)  # (7)
        d_a[t] = np.concatenate(
            [d_c * g * i * (1 - i), d_c * c[t] * f * (1 - f), d_c * i * (1 - g * g), d * tanh_c * o * (1 - o)], axis=-1
        )  # (8)
        d_c = d_c * f  # (7), for the step before
        past = d_a[t] @ u.T  # (6), for the step before
    rows, inputs, states = (z.reshape(-1, z.shape[-1]) for z in (d_a, x, h[:-1]))  # (T B, 4 H), (T B, E), (T B, H)
    return d_a @ w.T, inputs.T @ rows, states.T @ rows, rows.sum(axis=0)  # (9)


def sigmoid(x):
    """``1 / (1 + e^-x)``, by a function that cannot overflow."""
    return 0.5 * (1 + np.tanh(0.5 * x))
