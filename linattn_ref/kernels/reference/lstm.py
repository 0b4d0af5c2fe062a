"""The loop of an LSTM through time and back, as `linattn_ref.nn.lstm` derives it.

a_t = x_t W + b + h_(t-1) U                              (1)
i, f, o = sigma(a^i, a^f, a^o),   g = tanh(a^g)          (2)
c_t = f_t c_(t-1) + i_t g_t,   h_t = o_t tanh(c_t)       (3), (4)
dh_t = G_t + da_(t+1) U^T                                (5)
dc_t = dh_t o_t (1 - tanh(c_t)^2) + f_(t+1) dc_(t+1)     (6)
da_t                                                     (7)
"""

import numpy as np

__all__ = ["backward", "forward"]


def forward(a, u):
    """From the part of (1) that knows no past, all steps.

    Parameters
    ----------
    a : ndarray ``(T, B, 4 H)``
        ``x W + b``, the columns of i, then those of f, g and o.
    u : ndarray ``(H, 4 H)``

    Returns
    -------
    h, c : ndarray ``(T + 1, B, H)``
        The first of them, before any step, are 0.
    gates : ndarray ``(T, B, 4 H)``
        i, f, g and o.
    """
    h = np.zeros((len(a) + 1, a.shape[1], len(u)), a.dtype)
    c, gates = np.zeros_like(h), np.empty_like(a)
    for t in range(len(a)):
        i, f, g, o = np.split(a[t] + h[t] @ u, 4, axis=-1)  # (1)  (B, H)
        i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)  # (2)
        c[t + 1] = f * c[t] + i * g  # (3)
        h[t + 1] = o * np.tanh(c[t + 1])  # (4)
        gates[t] = np.concatenate([i, f, g, o], axis=-1)
    return h, c, gates


def backward(d_h, u, c, gates):
    """The gradient of ``a``, ``(T, B, 4 H)``; ``d_h (T, B, H)`` is ``G``, the others are those of :func:`forward`."""
    d_a, d_c, past = np.empty_like(gates), np.zeros_like(c[0]), np.zeros_like(c[0])
    for t in reversed(range(len(gates))):
        i, f, g, o = np.split(gates[t], 4, axis=-1)  # (B, H)
        tanh_c = np.tanh(c[t + 1])
        d = d_h[t] + past  # (5)
        d_c = d_c + d * o * (1 - tanh_c * tanh_c)  # (6)
        d_a[t] = np.concatenate(
            [d_c * g * i * (1 - i), d_c * c[t] * f * (1 - f), d_c * i * (1 - g * g), d * tanh_c * o * (1 - o)], axis=-1
        )  # (7)
        d_c = d_c * f  # (6), for the step before
        past = d_a[t] @ u.T  # (5), for the step before
    return d_a


def sigmoid(x):
    """``1 / (1 + e^-x)``, by a function that cannot overflow."""
    return 0.5 * (1 + np.tanh(0.5 * x))
