"""The gradient of log gates, one a head and row, from products that are there anyway.

With ``g_i = exp(log_gate_i)`` in a causal product, where nothing is erased, equation (12) of the reference's
`delta_product` is

    d_log_g_i = d_log_g_{i+1} + q_i . d_q_i - k_i . d_k_i                           (1)

starting after the last row with ``<d_state, S_N>``. The reason: ``d_log_g_i = <A_i, g_i S_{i-1}>``, with ``A`` and
``S`` the states of the reference's `causal_product`. There ``S_i = g_i S_{i-1} + k_i v_i^T``, so that this is ``<A_i,
S_i> - k_i . (A_i v_i)``, and ``A_i = q_i G_i^T + g_{i+1} A_{i+1}``, so that the first term is ``q_i . (S_i G_i) +
<A_{i+1}, g_{i+1} S_i>``.

So no state of one loop has to meet that of the other, as in `gate_gradient`, and the whole backward pass takes 1.8
times as long as without gates in place of 3.3 (N = 4096, eight heads of 64, float32, one thread). For 16384 rows of
width 64 the gradient is off by these shares of the largest number, summed with what rounding loses carried along:

    gates, uniform      float32    float64
    0.9 .. 1            2e-6       4e-15
    0.5 .. 1            5e-6       1e-14
    0 .. 1              8e-6       1e-14

It is the gradient in the logarithm: divided by a gate near 0, as for gates given as ``g``, its rounding would be
divided too, which `gate_gradient` has in numbers. After a gate of 0, whose own gradient is 0, the sum starts anew.

References
----------
Yang et al. (2024), "Gated linear attention transformers with hardware-efficient training", section 4.3.
"""

import numpy as np
from numba import njit, prange

from linattn_ref.kernels.jit.cache import kernel
from linattn_ref.kernels.jit.delta_gradients import sum_up
from linattn_ref.kernels.jit.heads import head_of, side_by_side, table_of
from linattn_ref.kernels.jit.vector import broadcast, fma, lanes, total
from linattn_ref.kernels.jit.views import columns_from, load_row


def log_gate_gradient(log_gate, q, k, d_q, d_k, last_t, d_last_t):
    """``d_log_g (..., N)``; ``last_t (heads, M, C)`` is ``S_N`` transposed, ``d_last_t`` its gradient."""
    d_log_gate = np.empty(log_gate.shape, log_gate.dtype)
    arrays = side_by_side(q, k, d_q, d_k, log_gate[..., None], d_log_gate[..., None])
    _heads(table_of(*arrays), np.ascontiguousarray(last_t), np.ascontiguousarray(d_last_t))
    return d_log_gate


@kernel
def _heads(table, last_t, d_last_t):
    dtype = last_t.dtype
    for head in prange(len(last_t)):
        q, k = head_of(table, 0, head, dtype), head_of(table, 1, head, dtype)
        d_q, d_k = head_of(table, 2, head, dtype), head_of(table, 3, head, dtype)
        log_gate, d_log_gate = head_of(table, 4, head, dtype), head_of(table, 5, head, dtype)
        for i in range(len(q)):
            d_log_gate[i, 0] = _dot(q, d_q, i) - _dot(k, d_k, i)
        sum_up(d_log_gate, log_gate, last_t[head], d_last_t[head])  # (1)


@njit
def _dot(x, y, i):
    result = broadcast(x.dtype.type(0))
    for column in range(0, x.shape[1], lanes(x)):
        result = fma(load_row(columns_from(x, column), i), load_row(columns_from(y, column), i), result)
    return total(result)
