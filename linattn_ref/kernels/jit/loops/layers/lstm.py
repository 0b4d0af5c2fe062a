"""The loop of an LSTM in Numba: `linattn_ref.nn.lstm_steps`.

Sequences know nothing of one another: a task takes some of them from the first step to the last. A step is a product
with ``U``, or ``U^T``, and what happens to each unit alone; a product with ``W`` is for several steps at once if
sequences are few. The matrices are packed once, in panels that stay near while many rows are multiplied with them. On
the way back, what needs no order of steps is NumPy's, after the loop: the product with ``W^T``, and the gradients of
``W`` and ``U``.
"""

import numba
import numpy as np

from linattn_ref.kernels.jit.loops.cache import kernel
from linattn_ref.kernels.jit.loops.inner import inner, once
from linattn_ref.kernels.jit.loops.rows import in_panels, widened, without_gaps
from linattn_ref.kernels.jit.loops.simd.vector import broadcast, fma, lanes, load, maximum, spread, store, where_greater
from linattn_ref.kernels.jit.loops.simd.vector_block import ROWS, add_scaled, load_block, store_block
from linattn_ref.kernels.jit.loops.simd.vector_exp import exp, exp_less_1
from linattn_ref.kernels.jit.loops.views import columns_from, load_row, rows_apart, rows_at, store_row

__all__ = ["backward", "forward"]

TOGETHER = 4 * ROWS  # rows of a product with W, at least


def forward(x, w, u, b, h0=None, c0=None):
    """``h`` and ``c``, ``(T + 1, B, H)`` from ``h0`` and ``c0`` on, and the gates, ``(T, B, 4 H)``."""
    (steps, batch, _), hidden = x.shape, len(u)
    w, u, bias = without_gaps(in_panels(w)), without_gaps(in_panels(u)), widened(b[None])
    h, c = np.empty((2, steps + 1, batch, hidden), x.dtype)
    h[0], c[0] = (0 if start is None else start for start in (h0, c0))
    gates = np.empty((steps, batch, bias.size), x.dtype)  # whole panels
    tasks, *shares = _shares(batch)
    _forward(tasks, without_gaps(x), w, u, bias, h, c, gates, *shares)
    return h, c, gates[..., : 4 * hidden]


def backward(d_h, x, w, u, h, c, gates):
    """The gradients of ``x``, ``w``, ``u``, ``b``, ``h0`` and ``c0``, from those of ``h (T, B, H)``."""
    d_h, c, gates, u = without_gaps(d_h), without_gaps(c), without_gaps(gates), without_gaps(in_panels(u.T))
    d_a, past = np.empty(gates.shape, x.dtype), np.zeros((x.shape[1], len(u) * lanes(x)), x.dtype)
    d_c, (tasks, sequences, _) = np.zeros_like(c[0]), _shares(x.shape[1])
    _backward(tasks, d_h, u, c, gates, d_a, past, d_c, sequences)
    rows, inputs, states = (z.reshape(-1, z.shape[-1]) for z in (d_a, x, h[:-1]))
    d_params = inputs.T @ rows, states.T @ rows, rows.sum(axis=0)  # (8)
    return (rows @ w.T).reshape(x.shape), *d_params, past[:, : d_c.shape[1]].copy(), d_c  # (8)


def _shares(batch):
    """Tasks, as many as threads; sequences of each, whole Blocks; steps whose inputs are multiplied together."""
    sequences = -(-batch // (ROWS * numba.get_num_threads())) * ROWS
    return -(-batch // sequences), sequences, -(-TOGETHER // batch) if batch <= sequences else 1


# --- Compiled -------------------------------------------------------------------------------------------------------


@kernel(
    x="T B E", w="panels E lanes", u="panels H lanes", bias="1 columns", h="T+1 B H", c="T+1 B H", gates="T B columns"
)
def _forward(task, x, w, u, bias, h, c, gates, sequences, together):
    first, last = task * sequences, min((task + 1) * sequences, h.shape[1])
    for t in range(len(x)):
        if t % together == 0:
            count = min(together, len(x) - t) * (last - first)
            _times(_rows(gates, t, first, count), _repeated(bias, count), _rows(x, t, first, count), w)  # (1)
        now = gates[t, first:last]
        _times(now, now, h[t, first:last], u)  # (1)
        _step(now, c[t, first:last], c[t + 1, first:last], h[t + 1, first:last])


@kernel(d_h="T B H", u="panels K lanes", c="T+1 B H", gates="T B K", d_a="T B K", past="B *", d_c="B H")
def _backward(task, d_h, u, c, gates, d_a, past, d_c, sequences):
    first, last = task * sequences, min((task + 1) * sequences, len(d_c))
    some, d_some = past[first:last], d_c[first:last]
    for t in range(len(gates) - 1, -1, -1):
        now, c_before, c_now = d_a[t, first:last], c[t, first:last], c[t + 1, first:last]
        _step_back(gates[t, first:last], now, c_before, c_now, d_h[t, first:last], some, d_some)
        some[:] = 0
        _times(some, some, now, u)  # (5), for the step before


@inner
def _rows(x, t, first, count):
    """So many rows of ``x`` from ``x[t, first]`` on."""
    before = (t * x.shape[1] + first) * x.shape[2]
    return rows_at(x.ctypes.data + before * x.itemsize, count, x.shape[2], x.dtype)


@inner
def _repeated(x, count):
    """The one row of ``x``, so many times."""
    return rows_apart(x.ctypes.data, count, x.shape[1], 0, x.dtype)


@inner
def _times(out, start, x, panels):
    """``out = start + x @ panels``; ``start`` may be ``out``."""
    rows, terms = x.shape
    whole = rows - rows % ROWS
    for p in range(len(panels)):
        panel = panels[p]
        into, begin = columns_from(out, p * panels.shape[2]), columns_from(start, p * panels.shape[2])
        for r in range(0, whole, ROWS):
            block = load_block(begin, r)
            for t in range(terms):
                block = add_scaled(block, x, r, t, load(panel, t))
            store_block(into, r, block)
        for r in range(whole, rows, 4):  # sums enough to keep the multipliers busy; the last row may be there again
            r_1, r_2, r_3 = min(r + 1, rows - 1), min(r + 2, rows - 1), min(r + 3, rows - 1)
            sum_0, sum_1, sum_2, sum_3 = load(begin, r), load(begin, r_1), load(begin, r_2), load(begin, r_3)
            for t in range(terms):
                term = load(panel, t)
                sum_0, sum_1 = fma(spread(x, r, t), term, sum_0), fma(spread(x, r_1, t), term, sum_1)
                sum_2, sum_3 = fma(spread(x, r_2, t), term, sum_2), fma(spread(x, r_3, t), term, sum_3)
            store(into, r, sum_0)
            store(into, r_1, sum_1)
            store(into, r_2, sum_2)
            store(into, r_3, sum_3)


@inner
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


@once
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


@inner(forceinline=True)
def _sigmoid(x, one):
    return one / (one + exp(one - one - x))


@inner(forceinline=True)
def _tanh(x, one):
    zero, two = one - one, one + one
    less_1 = exp_less_1(two * (zero - maximum(x, zero - x)))  # of -2 |x|
    of_minus = less_1 / (two + less_1)
    return where_greater(x, zero, zero - of_minus, of_minus)
