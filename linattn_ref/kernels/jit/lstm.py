"""The loop of an LSTM in Numba: `linattn_ref.kernels.reference.lstm`.

Sequences know nothing of one another: a task takes some of them from the first step to the last. A step is a matrix
product, ``h U`` or ``da U^T``, and what happens to each unit alone. The matrix is packed once, in panels that stay near
while all sequences of a task are multiplied with them.
"""

import numba
import numpy as np
from numba import njit, prange

from linattn_ref.kernels.jit.cache import kernel
from linattn_ref.kernels.jit.panel import product
from linattn_ref.kernels.jit.vector import broadcast, lanes
from linattn_ref.kernels.jit.vector_block import ROWS
from linattn_ref.kernels.jit.vector_exp import exp
from linattn_ref.kernels.jit.views import columns_from, load_row, store_row

__all__ = ["backward", "forward"]


def forward(a, u):
    """``h``, ``c`` and the gates; arguments are the reference's."""
    h, c = np.empty((2, len(a) + 1, a.shape[1], len(u)), a.dtype)
    h[0] = c[0] = 0
    panels = _panels(u)
    gates = np.zeros((*a.shape[:2], len(panels) * lanes(a)), a.dtype)  # whole panels
    gates[..., : a.shape[2]] = a
    _forward(gates, h, c, panels, _sequences_a_task(a.shape[1]))
    return h, c, gates[..., : a.shape[2]]


def backward(d_h, u, c, gates):
    """The gradient of ``a``; arguments are the reference's."""
    d_a, panels = np.empty(gates.shape, gates.dtype), _panels(u.T)
    past = np.zeros((d_h.shape[1], len(panels) * lanes(u)), u.dtype)
    d_h, gates = np.require(d_h, requirements="CW"), np.require(gates, requirements="CW")
    _backward(d_h, panels, c, gates, d_a, past, np.zeros_like(c[0]), _sequences_a_task(d_h.shape[1]))
    return d_a


def _panels(u):
    """The columns of a matrix, as many as a Vector has lanes to a panel, and 0 after the last of them."""
    width = lanes(u)
    count = -(-u.shape[1] // width)
    panels = np.zeros((len(u), count, width), u.dtype)
    panels.reshape(len(u), -1)[:, : u.shape[1]] = u
    return np.ascontiguousarray(panels.swapaxes(0, 1))  # (panels, rows of u, lanes)


def _sequences_a_task(batch):
    """As many tasks as threads, each of whole Blocks if there are enough."""
    return -(-batch // (ROWS * numba.get_num_threads())) * ROWS


# --- Compiled -------------------------------------------------------------------------------------------------------


@kernel
def _forward(gates, h, c, panels, sequences):
    for task in prange((h.shape[1] + sequences - 1) // sequences):
        some = slice(task * sequences, min((task + 1) * sequences, h.shape[1]))
        for t in range(len(gates)):
            _times(gates[t, some], h[t, some], panels, True)  # (1)
            _step(gates[t, some], c[t, some], c[t + 1, some], h[t + 1, some])


@kernel
def _backward(d_h, panels, c, gates, d_a, past, d_c, sequences):
    for task in prange((len(d_c) + sequences - 1) // sequences):
        some = slice(task * sequences, min((task + 1) * sequences, len(d_c)))
        for t in range(len(gates) - 1, -1, -1):
            _step_back(gates[t, some], d_a[t, some], c[t, some], c[t + 1, some], d_h[t, some], past[some], d_c[some])
            _times(past[some], d_a[t, some], panels, False)  # (5), for the step before


@njit
def _times(out, x, panels, accumulate):
    """``out = x @ u``, or ``+=``."""
    width = panels.shape[2]
    for p in range(len(panels)):
        product(out[:, p * width : (p + 1) * width], x, panels[p], accumulate)


@njit
def _step(gates, c_before, c, h):
    """(2) to (4), ``gates`` being ``a`` before."""
    one, n = broadcast(c.dtype.type(1)), c.shape[1]
    all_i, all_f, all_g, all_o = gates[:, :n], gates[:, n : 2 * n], gates[:, 2 * n : 3 * n], gates[:, 3 * n : 4 * n]
    for first in range(0, n, lanes(c)):
        a_i, a_f = columns_from(all_i, first), columns_from(all_f, first)
        a_g, a_o = columns_from(all_g, first), columns_from(all_o, first)
        old, new, out = columns_from(c_before, first), columns_from(c, first), columns_from(h, first)
        for b in range(len(c)):
            i, f = _sigmoid(load_row(a_i, b), one), _sigmoid(load_row(a_f, b), one)  # (2)
            g, o = _tanh(load_row(a_g, b), one), _sigmoid(load_row(a_o, b), one)
            now = f * load_row(old, b) + i * g  # (3)
            store_row(new, b, now)
            store_row(out, b, o * _tanh(now, one))  # (4)
            store_row(a_i, b, i)
            store_row(a_f, b, f)
            store_row(a_g, b, g)
            store_row(a_o, b, o)


@njit
def _step_back(gates, d_a, c_before, c, d_h, past, d_c):
    """(5) to (7); ``d_c`` becomes that of the step before."""
    one, n = broadcast(c.dtype.type(1)), c.shape[1]
    all_i, all_f, all_g, all_o = gates[:, :n], gates[:, n : 2 * n], gates[:, 2 * n : 3 * n], gates[:, 3 * n : 4 * n]
    d_i, d_f, d_g, d_o = d_a[:, :n], d_a[:, n : 2 * n], d_a[:, 2 * n : 3 * n], d_a[:, 3 * n : 4 * n]
    for first in range(0, n, lanes(c)):
        for b in range(len(c)):
            i, f = load_row(columns_from(all_i, first), b), load_row(columns_from(all_f, first), b)
            g, o = load_row(columns_from(all_g, first), b), load_row(columns_from(all_o, first), b)
            tanh_c = _tanh(load_row(columns_from(c, first), b), one)
            later, d_state = columns_from(past[:, :n], first), columns_from(d_c, first)
            d = load_row(columns_from(d_h, first), b) + load_row(later, b)  # (5)
            d_now = load_row(d_state, b) + d * o * (one - tanh_c * tanh_c)  # (6)
            store_row(columns_from(d_i, first), b, d_now * g * i * (one - i))  # (7)
            store_row(columns_from(d_f, first), b, d_now * load_row(columns_from(c_before, first), b) * f * (one - f))
            store_row(columns_from(d_g, first), b, d_now * i * (one - g * g))
            store_row(columns_from(d_o, first), b, d * tanh_c * o * (one - o))
            store_row(d_state, b, d_now * f)  # (6), for the step before


@njit(forceinline=True)
def _sigmoid(x, one):
    return one / (one + exp(one - one - x))


@njit(forceinline=True)
def _tanh(x, one):
    two = one + one
    return two / (one + exp(one - one - two * x)) - one
