"""The feature map ``elu + 1`` in Numba: `linattn_ref.kernels.reference.elu_plus_one`, once over the memory.

An array is cut into blocks of ``BLOCK`` numbers, each a task, and each block into Vectors.
"""

import numpy as np
from numba import njit, prange

from linattn_ref.kernels.jit.cache import kernel, serial_kernel
from linattn_ref.kernels.jit.causal_step import bind, bound_rows, in_its_dtype, step_rows
from linattn_ref.kernels.jit.vector import broadcast, exp, lanes, load, maximum, minimum, store
from linattn_ref.kernels.jit.views import columns_from, give_back, load_row, rows_of, store_row

BLOCK = 1 << 13  # numbers


def forward(x):
    """``phi(x)``, and what the gradient needs, which is the same."""
    phi = np.empty(x.shape, x.dtype)
    write_phi(_numbers(x), phi.reshape(-1))
    return phi, phi


def backward(d_phi, phi):
    """The gradient of ``x``, written over that of ``phi(x)``, or new where this is not contiguous."""
    d_x = _numbers(d_phi)
    multiply_by_slope(d_x, _numbers(phi))
    return d_x.reshape(phi.shape)


def step(q, k, v, s, z, eps):
    """One token, ``(..., D)``, ``(..., D)``, ``(..., M)`` -> ``out (..., M)``; brings ``s`` and ``z`` up to date."""
    out = np.empty(v.shape, v.dtype)
    step_heads(q, k, v, s, z, eps, out)
    return out


def bind_step(q, k, v, s, z, eps, out, *, turns=None):
    """:func:`step` of these arrays, all contiguous, as a function without arguments that writes ``out``."""
    phi_q, phi_k = np.empty_like(q), np.empty_like(k)
    return bind(step_bound, turns, q, k, phi_q, phi_k, v, s, z, np.full((1, 1), eps, v.dtype), out)


def _numbers(x):
    """All of them in a row; Numba would compile anew for read-only arrays."""
    return np.require(x, requirements=["C", "W"]).reshape(-1)


# --- Compiled -------------------------------------------------------------------------------------------------------


@kernel
def write_phi(x, phi):
    """``phi(x)``, both ``(numbers,)``."""
    for block in prange((len(x) + BLOCK - 1) // BLOCK):
        some = slice(block * BLOCK, (block + 1) * BLOCK)
        (xs, last_x), (phis, last_phi) = _vectors(x[some]), _vectors(phi[some])
        zero = broadcast(x.dtype.type(0))
        for i in range(len(xs)):
            store(phis, i, _phi(load(xs, i), zero))
        if last_x.size:
            store_row(last_phi, 0, _phi(load_row(last_x, 0), zero))


@kernel
def multiply_by_slope(d_phi, phi):
    """``d_phi *= phi'``, both ``(numbers,)``."""
    for block in prange((len(phi) + BLOCK - 1) // BLOCK):
        some = slice(block * BLOCK, (block + 1) * BLOCK)
        (gs, last_g), (phis, last_phi) = _vectors(d_phi[some]), _vectors(phi[some])
        one = broadcast(phi.dtype.type(1))
        for i in range(len(phis)):
            store(gs, i, load(gs, i) * minimum(one, load(phis, i)))  # (2)
        if last_phi.size:
            store_row(last_g, 0, load_row(last_g, 0) * minimum(one, load_row(last_phi, 0)))


@njit(forceinline=True)
def _vectors(x):
    """``x`` as rows of a Vector each, and as one row what is left."""
    whole = len(x) - len(x) % lanes(x)
    return x[:whole].reshape(-1, lanes(x)), x[whole:].reshape(1, -1)


@njit(forceinline=True)
def _phi(x, zero):
    """(1), lane by lane; NaN stays."""
    return exp(minimum(zero, x)) + maximum(zero, x)


@serial_kernel
def step_heads(q, k, v, s, z, eps, out):
    """`causal_step.step_heads` of the features."""
    rows_q, rows_k, rows_s, rows_z = rows_of(q), rows_of(k), rows_of(s), rows_of(z)
    phi_q, phi_k = np.empty(rows_q.shape, q.dtype), np.empty(rows_k.shape, k.dtype)
    _step_rows(rows_q, rows_k, phi_q, phi_k, rows_of(v), rows_s, rows_z, eps, rows_of(out))
    give_back(s, rows_s)
    give_back(z, rows_z)


@serial_kernel
def step_bound(table):
    """`causal_step.step_bound`, the table beginning with ``q, k`` and arrays for their features."""
    in_its_dtype(_step_bound, table)


@njit
def _step_bound(table, dtype):
    q, k, phi_q = bound_rows(table, 0, dtype), bound_rows(table, 1, dtype), bound_rows(table, 2, dtype)
    phi_k, v, s = bound_rows(table, 3, dtype), bound_rows(table, 4, dtype), bound_rows(table, 5, dtype)
    z, eps, out = bound_rows(table, 6, dtype), bound_rows(table, 7, dtype), bound_rows(table, 8, dtype)
    _step_rows(q, k, phi_q, phi_k, v, s, z, eps[0, 0], out)


@njit
def _step_rows(q, k, phi_q, phi_k, v, s, z, eps, out):
    _features(q, phi_q)
    _features(k, phi_k)
    step_rows(phi_q, phi_k, v, s, z, eps, out)


@njit(forceinline=True)
def _features(x, phi):
    for first in range(0, x.shape[1], lanes(x)):
        some_x, some_phi = columns_from(x, first), columns_from(phi, first)
        for row in range(len(x)):
            store_row(some_phi, row, _phi(load_row(some_x, row), broadcast(x.dtype.type(0))))
