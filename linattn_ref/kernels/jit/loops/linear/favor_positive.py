"""One position of the Performer with its positive features, for decoding: exponents, scale, features and step at once.

    a(x) = omega (scale x) - |scale x|^2/2 - log(m)/2        (1)  (C,)
    r_c = max(r_c, a_c(k)), if some a_c(k) > r_c + rise      (2)  S and Z times exp(r_old - r_new)
    phi_k = exp(a(k) - r)                                    (3)
    phi_q = exp(a(q) + r - t),   t = max_c (a_c(q) + r_c)    (4)

What (2) is for, ``kernels/common/rises.py`` says. Of features the rest is `causal_step`.
"""

import math

import numpy as np

from linattn_ref.kernels.jit.loops.cache import serial_kernel
from linattn_ref.kernels.jit.loops.inner import inner
from linattn_ref.kernels.jit.loops.linear.causal_step import step_rows
from linattn_ref.kernels.jit.loops.linear.exponential_features import shifted_by_its_largest
from linattn_ref.kernels.jit.loops.rows import as_rows
from linattn_ref.kernels.jit.loops.simd.panel import new_panel, pack, product
from linattn_ref.kernels.jit.loops.simd.vector import broadcast, lanes, load, maximum, total
from linattn_ref.kernels.jit.loops.simd.vector_exp import exp
from linattn_ref.kernels.jit.loops.views import columns_from, load_row, store_row


def step(q, k, v, s, z, log_scale, rise, feature_map):
    """One token, ``(..., D)``, ``(..., D)``, ``(..., M)`` -> ``out (..., M)`` and the new scale ``(..., C)``.

    ``s`` and ``z`` are brought up to date; ``log_scale (..., 1 or C)`` is not written to.
    """
    omega, scale = feature_map[:2]
    out, r = np.empty(v.shape, v.dtype), np.empty(z.shape, z.dtype)
    r[...] = log_scale
    rows_s, rows_z = as_rows(s), as_rows(z)
    omega = np.ascontiguousarray(omega, q.dtype)
    step_rows_of_heads(as_rows(q), as_rows(k), as_rows(v), rows_s, rows_z, as_rows(r), rise, omega, scale, as_rows(out))
    if not (s.flags.carray and z.flags.carray):
        s[...], z[...] = rows_s.reshape(s.shape), rows_z.reshape(z.shape)
    return out, r


# --- Compiled -------------------------------------------------------------------------------------------------------


@serial_kernel(
    q="heads D", k="heads D", v="heads M", s="states M", z="heads C", r="heads C", omega="C D", out="heads M"
)
def step_rows_of_heads(q, k, v, s, z, r, rise, omega, scale, out):
    """Write ``out`` and bring ``s``, ``z`` and ``r`` up to date."""
    if k.shape != q.shape or r.shape != z.shape or len(q) != len(z) or omega.shape != (z.shape[1], q.shape[1]):
        raise ValueError("expected q and k (..., D), z and the scale (..., C), omega (C, D)")
    if s.shape != (z.size, v.shape[1]):
        raise ValueError("expected s (..., C, M), z (..., C) and v (..., M)")
    phi_q, phi_k, shift = np.empty_like(z), np.empty_like(z), np.empty_like(r[:1])
    _exponents(q, k, omega, q.dtype.type(scale), phi_q, phi_k)
    for head in range(len(q)):
        _raise_scale(phi_k, r, s, z, head, r.dtype.type(rise))
        for c in range(r.shape[1]):
            shift[0, c] = _finite(r[head, c])
        largest = shifted_by_its_largest(phi_q, shift, head)
        for first in range(0, r.shape[1], lanes(r)):
            some_q, some_k, some_r = columns_from(phi_q, first), columns_from(phi_k, first), columns_from(shift, first)
            store_row(some_q, head, exp(load_row(some_q, head) - largest))  # (4)
            store_row(some_k, head, exp(load_row(some_k, head) - load_row(some_r, 0)))  # (3)
    step_rows(phi_q, phi_k, v, s, z, 0.0, out)


@inner
def _exponents(q, k, omega, scale, a_q, a_k):
    """(1) of queries and keys, as many directions at a time as a Vector has lanes."""
    directions, panel = new_panel(q.shape[1], q), new_panel(len(q), q)
    lowest = broadcast(q.dtype.type(np.finfo(q.dtype).min))
    for first in range(0, len(omega), lanes(q)):
        pack(directions, omega[first : first + lanes(q)], scale)
        for x, a in ((q, a_q), (k, a_k)):
            product(panel, x, directions, False)
            columns = columns_from(a, first)
            for head in range(len(x)):
                exponents = load(panel, head) - broadcast(_rest(x, head, scale, len(omega)))
                store_row(columns, head, maximum(lowest, exponents))


@inner(forceinline=True)
def _rest(x, head, scale, m):
    """What (1) subtracts."""
    squares = broadcast(x.dtype.type(0))
    for first in range(0, x.shape[1], lanes(x)):
        y = load_row(columns_from(x, first), head) * broadcast(scale)
        squares = squares + y * y
    return total(squares) / x.dtype.type(2) + x.dtype.type(math.log(m) / 2)


@inner
def _raise_scale(a_k, r, s, z, head, rise):
    """(2) for a head."""
    width = r.shape[1]
    above = False
    for c in range(width):
        above |= a_k[head, c] > r[head, c] + rise
    if not above:
        return
    for c in range(width):
        old = r[head, c]
        if not old > a_k[head, c]:
            r[head, c] = a_k[head, c]
        decay = math.exp(old - _finite(r[head, c]))
        z[head, c] *= decay
        for i in range(s.shape[1]):
            s[head * width + c, i] *= decay


@inner(forceinline=True)
def _finite(r):
    """``r``, and 0 in place of the ``-inf`` of a head that has seen no key."""
    return type(r)(0) if r == -np.inf else r
