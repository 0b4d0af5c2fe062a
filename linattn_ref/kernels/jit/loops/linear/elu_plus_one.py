"""The feature map ``elu + 1`` of `linattn_ref.attention.feature_maps` in Numba, once over the memory.

    phi(x) = x + 1 if x > 0 else exp(x)                      (1)
    phi'(x) = 1 if x > 0 else exp(x)  =  min(phi(x), 1)      (2)

An array is cut into blocks of rows, about ``BLOCK`` numbers, each a task, and each block into Vectors.
"""

import math

import numpy as np

from linattn_ref.kernels.jit.loops.cache import kernel, serial_kernel
from linattn_ref.kernels.jit.loops.heads import head_of, side_by_side, table_of
from linattn_ref.kernels.jit.loops.inner import inner
from linattn_ref.kernels.jit.loops.linear.causal_step import step_rows
from linattn_ref.kernels.jit.loops.simd.vector import VECTOR_BYTES, broadcast, lanes, maximum, minimum
from linattn_ref.kernels.jit.loops.simd.vector_exp import exp
from linattn_ref.kernels.jit.loops.views import columns_from, load_row, rows_of, store_row

BLOCK = 1 << 13  # numbers


def forward(x):
    """``phi(x)``, and what the gradient needs, which is the same."""
    phi = np.empty(x.shape, x.dtype)
    _run(write_phi, x, phi)
    return phi, phi


def backward(d_phi, phi):
    """The gradient of ``x``, written over that of ``phi(x)``; new where that is read-only, or its rows have gaps."""
    d_x = d_phi if d_phi.flags.carray else side_by_side(np.require(d_phi, requirements="W"))[0]
    _run(multiply_by_slope, phi, d_x)
    return d_x


def step(q, k, v, s, z, eps):
    """One token, ``(..., D)``, ``(..., D)``, ``(..., M)`` -> ``out (..., M)``; brings ``s`` and ``z`` up to date."""
    out, whole = np.empty(v.shape, v.dtype), np.ascontiguousarray
    step_heads(whole(q), whole(k), whole(v), s, z, float(eps), out)
    return out


def _run(kernel, x, y):
    """A kernel on two arrays, of which ``y`` has no gaps in a row. Rows are short: without gaps they may be Vectors."""
    if x.nbytes % VECTOR_BYTES == 0 and x.flags.c_contiguous and y.flags.c_contiguous:
        x, y = x.reshape(-1, VECTOR_BYTES // x.itemsize), y.reshape(-1, VECTOR_BYTES // x.itemsize)
    else:
        x = side_by_side(x)[0]
        x, y = (x[None], y[None]) if x.ndim < 2 else (x, y)
    n = max(BLOCK // max(x.shape[-1], 1), 1)
    kernel(math.prod(x.shape[:-2]) * -(-x.shape[-2] // n), table_of(x, y), n, np.zeros(1, x.dtype))


# --- Compiled -------------------------------------------------------------------------------------------------------


@kernel(table=("heads N W", "heads N W"), zero="1")
def write_phi(task, table, n, zero):
    """``phi(x)`` of the arrays ``x`` and ``phi`` in a table, ``n`` rows of a head; ``zero (1,)`` in their dtype."""
    write_features(_block(table, 0, task, n, zero), _block(table, 1, task, n, zero))


@kernel(table=("heads N W", "heads N W"), zero="1")
def multiply_by_slope(task, table, n, zero):
    """``d_phi *= phi'`` of the arrays ``phi`` and ``d_phi``, likewise."""
    phi, g = _block(table, 0, task, n, zero), _block(table, 1, task, n, zero)
    for first in range(0, g.shape[1], lanes(g)):
        some_g, some_phi = columns_from(g, first), columns_from(phi, first)
        for i in range(len(g)):
            slope = minimum(broadcast(g.dtype.type(1)), load_row(some_phi, i))
            store_row(some_g, i, load_row(some_g, i) * slope)  # (2)


@inner(forceinline=True)
def _block(table, i, task, n, zero):
    tasks = (table[i + 1, 1] + n - 1) // n  # per head
    return head_of(table, i, task // tasks, zero.dtype)[task % tasks * n : (task % tasks + 1) * n]


@inner(forceinline=True)
def _phi(x, zero):
    """(1), lane by lane; NaN stays."""
    return exp(minimum(zero, x)) + maximum(zero, x)


@serial_kernel(q="... C", k="... C", v="... M", s="... C M", z="... C", out="... M", written="s z out")
def step_heads(q, k, v, s, z, eps, out):
    """`causal_step.step_heads` of the features."""
    rows_q, rows_k = rows_of(q), rows_of(k)
    phi_q, phi_k = np.empty(rows_q.shape, q.dtype), np.empty(rows_k.shape, k.dtype)
    write_features(rows_q, phi_q)
    write_features(rows_k, phi_k)
    step_rows(phi_q, phi_k, rows_of(v), rows_of(s), rows_of(z), eps, rows_of(out))


@inner(forceinline=True)
def write_features(x, phi):
    """``phi(x)`` of rows, written to ``phi``, which may be ``x`` itself."""
    for first in range(0, x.shape[1], lanes(x)):
        some_x, some_phi = columns_from(x, first), columns_from(phi, first)
        for row in range(len(x)):
            store_row(some_phi, row, _phi(load_row(some_x, row), broadcast(x.dtype.type(0))))
