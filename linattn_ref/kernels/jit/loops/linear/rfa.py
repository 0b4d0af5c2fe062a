"""One position of random feature attention, for decoding: unit vectors, features, gate and step at once.

    y = x / |x|                                              (1)  0 for x = 0
    phi(x) = [sin(omega y), cos(omega y)] / sqrt(m)          (2)  C = 2m
    phi(x) = max(omega y, 0) / sqrt(m)                       (3)  C = m, arc-cosine
    S = g S + (1 - g) phi(k) v^T,   Z = g Z + (1 - g) phi(k) (4)

Without a gate both ``g`` and ``1 - g`` are 1. Of features the rest is `causal_step`.
"""

import math

import numpy as np

from linattn_ref.kernels.jit.loops.cache import serial_kernel
from linattn_ref.kernels.jit.loops.inner import inner
from linattn_ref.kernels.jit.loops.linear.causal_step import step_rows
from linattn_ref.kernels.jit.loops.rows import as_rows
from linattn_ref.kernels.jit.loops.simd.panel import new_panel, product
from linattn_ref.kernels.jit.loops.simd.reciprocal import reciprocal, rest
from linattn_ref.kernels.jit.loops.simd.vector import broadcast, lanes, largest_lane, load, maximum, total
from linattn_ref.kernels.jit.loops.simd.vector_trig import sine_cosine
from linattn_ref.kernels.jit.loops.views import columns_from, load_row, rows_apart, store_row

WIDEST = 128  # bytes of a Vector, on any processor


def step(q, k, v, s, z, gate, eps, feature_map):
    """One token, ``(..., D)``, ``(..., D)``, ``(..., M)`` -> ``out (..., M)``; brings ``s`` and ``z`` up to date.

    ``gate (...)``, or None. The map has a field ``omega (m, D)``, and one or two features per direction, (3) or (2).
    """
    out, rows_s, rows_z = np.empty(v.shape, v.dtype), as_rows(s), as_rows(z)
    more = _gates(gate, q), _directions(feature_map, q), len(feature_map.omega), float(eps)
    step_heads(as_rows(q), as_rows(k), as_rows(v), rows_s, rows_z, *more, as_rows(out))
    if not (s.flags.carray and z.flags.carray):
        s[...], z[...] = rows_s.reshape(s.shape), rows_z.reshape(z.shape)
    return out


def _gates(gate, q):
    """A gate per row ``(rows, 1)``, or no rows."""
    return np.empty((0, 1), q.dtype) if gate is None else as_rows(gate[..., None])


def _directions(feature_map, q):
    """``omega^T``, and so many columns of zeros that any Vector of its columns is whole."""
    omega, fewest = feature_map.omega, WIDEST // q.itemsize
    directions = np.zeros((omega.shape[1], -(-len(omega) // fewest) * fewest), q.dtype)
    directions[:, : len(omega)] = omega.T
    return directions


# --- Compiled -------------------------------------------------------------------------------------------------------


@serial_kernel(
    q="heads D", k="heads D", v="heads M", s="states M", z="heads C", gate="gates 1", directions="D *", out="heads M"
)
def step_heads(q, k, v, s, z, gate, directions, m, eps, out):
    """Write ``out`` and bring ``s`` and ``z`` up to date."""
    if k.shape != q.shape or len(z) != len(q) or len(directions) != q.shape[1] or z.shape[1] not in (m, 2 * m):
        raise ValueError("expected q and k (..., D), omega (m, D), z (..., m or 2 m)")
    if len(gate) != 0 and len(gate) != len(q):
        raise ValueError("expected a gate for each of the leading axes of q")
    phi_q, phi_k, y, panel = np.empty_like(z), np.empty_like(z), np.empty_like(q), new_panel(len(q), q)
    for x, phi in ((q, phi_q), (k, phi_k)):
        for row in range(len(x)):
            _write_unit(x, row, y)
        _features(y, directions, m, panel, phi)
    if len(gate):
        _weigh(phi_k, gate)
    else:
        gate = np.ones((len(q), 1), q.dtype)
    step_rows(phi_q, phi_k, v, s, z, eps, out, gate)  # (4)


@inner
def _weigh(phi, gate):
    """Times ``1 - g``."""
    for row in range(len(phi)):
        for c in range(phi.shape[1]):
            phi[row, c] *= 1 - gate[row, 0]


@inner
def _features(y, directions, m, panel, phi):
    """(2) or (3)."""
    scale = y.dtype.type(1 / math.sqrt(m))
    sines, cosines = _columns(phi, 0, m), _columns(phi, phi.shape[1] - m, m)
    for first in range(0, m, lanes(y)):
        product(panel, y, columns_from(directions, first), False)
        some_sines, some_cosines = columns_from(sines, first), columns_from(cosines, first)
        for row in range(len(y)):
            p = load(panel, row)
            if phi.shape[1] == m:
                store_row(some_sines, row, maximum(p, broadcast(y.dtype.type(0))) * broadcast(scale))  # (3)
            else:
                sine, cosine = sine_cosine(p)
                store_row(some_sines, row, sine * broadcast(scale))  # (2)
                store_row(some_cosines, row, cosine * broadcast(scale))  # (2)


@inner(forceinline=True)
def _columns(x, first, count):
    """``x[:, first : first + count]``."""
    return rows_apart(x.ctypes.data + first * x.itemsize, len(x), count, x.strides[0], x.dtype)


@inner(forceinline=True)
def _write_unit(x, row, y):
    """(1), whatever the length; first over the largest entry, so that no square leaves the range."""
    zero = x.dtype.type(0)
    largest = broadcast(zero)
    for first in range(0, x.shape[1], lanes(x)):
        part = load_row(columns_from(x, first), row)
        largest = maximum(maximum(part, broadcast(zero) - part), largest)
    size, squares = largest_lane(largest), broadcast(zero)
    share, more = broadcast(reciprocal(size, x)), broadcast(rest(size, x))
    for first in range(0, x.shape[1], lanes(x)):
        part = load_row(columns_from(x, first), row) * share * more
        store_row(columns_from(y, first), row, part)
        squares = squares + part * part
    length = x.dtype.type(math.sqrt(total(squares)))
    over = broadcast(zero if length == 0 else x.dtype.type(1) / length)
    for first in range(0, x.shape[1], lanes(x)):
        columns = columns_from(y, first)
        store_row(columns, row, load_row(columns, row) * over)
