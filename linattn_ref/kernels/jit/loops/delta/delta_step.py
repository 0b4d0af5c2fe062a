"""One row of the delta rule, for decoding: the state passes through the registers twice, and memory once.

With ``x = g * e`` and ``y = g * q`` (a gate per channel multiplies channel by channel) the rule is

    u = v - x S                                              (1)
    out = y S + (q . k) u                                    (2)
    S' = g S + k^T u                                         (3)

Both reads are of the state as it was, and share one sweep over it; a second sweep writes. ``out`` needs no third, since
``q S' = (g * q) S + (q . k) u``. Columns are taken two Vectors at a time, so that what the first sweep has loaded is
still in a first-level cache when the second comes, also with heads of 128.

The kernel also does what a page does around this: unit length, the scale, ``beta``, and whether gates and ``beta`` are
in range. In Python, each of these would take as long as some heads. Arrays have one axis, so that the kernel is
compiled once per dtype.
"""

import math

import numpy as np

from linattn_ref.kernels.jit.loops.cache import serial_kernel
from linattn_ref.kernels.jit.loops.inner import inner
from linattn_ref.kernels.jit.loops.simd.vector import broadcast, fma, lanes, spread, store, total
from linattn_ref.kernels.jit.loops.simd.vector_exp import exp
from linattn_ref.kernels.jit.loops.views import columns_from, load_row, rows_at, store_row

EPS = 1e-6  # of a unit key, as in `attention.delta`
X, Y, K, G = range(4)  # rows of what is made of a head's


@serial_kernel(q="*", k="*", v="*", e="*", beta="*", log_gate="*", s="*", after="*", out="*", written="after out")
def step_heads(q, k, v, e, beta, log_gate, s, after, out, c, m, scale, normalise):
    """Write ``out (heads * M)`` and the state ``after (heads * C * M)``, which may be ``s``.

    ``e`` has ``heads * C`` numbers, or none, and then it is ``beta * k``, and values are ``beta * v``, if there is
    ``beta (heads)``. ``log_gate`` has ``heads * C`` numbers, ``heads``, or none. Returns whether gates and ``beta`` are
    in range; where not, nothing is written.
    """
    heads = q.size // c
    if q.size != heads * c or k.size != q.size or v.size != heads * m or out.size != v.size:
        raise ValueError("expected q and k (heads * C), v and out (heads * M)")
    if s.size != q.size * m or after.size != s.size:
        raise ValueError("expected s and after (heads * C * M)")
    if e.size not in (0, q.size) or beta.size not in (0, heads) or log_gate.size not in (0, heads, q.size):
        raise ValueError("expected e (heads * C), beta (heads) and log_gate (heads) or (heads * C), or nothing")
    fine = True  # NaN is not
    for i in range(log_gate.size):
        fine &= log_gate[i] <= 0
    for i in range(beta.size):
        fine &= (beta[i] >= 0) & (beta[i] <= 2)
    if not fine:
        return False
    width = (c + lanes(q) - 1) // lanes(q) * lanes(q)
    made, erases = np.empty((4, width), q.dtype), e.size > 0 or beta.size > 0
    for head in range(heads):
        some = beta[head] if beta.size else q.dtype.type(1)
        of_q = _make(made, q, k, e if e.size else k, log_gate, heads, head, c, scale, some, erases, normalise)
        old = rows_at(s.ctypes.data + head * c * m * s.itemsize, c, m, s.dtype)
        new = rows_at(after.ctypes.data + head * c * m * s.itemsize, c, m, s.dtype)
        values = rows_at(v.ctypes.data + head * m * v.itemsize, 1, m, v.dtype)
        row = rows_at(out.ctypes.data + head * m * v.itemsize, 1, m, v.dtype)
        for first in range(0, m, 2 * lanes(v)):
            second = min(first + lanes(v), m)
            here, there = columns_from(old, first), columns_from(old, second)
            x_here, x_there, y_here, y_there = _read(here, there, made, c)
            u_here = load_row(columns_from(values, first), 0) * broadcast(some) - x_here  # (1)
            u_there = load_row(columns_from(values, second), 0) * broadcast(some) - x_there
            store_row(columns_from(row, first), 0, fma(broadcast(of_q), u_here, y_here))  # (2)
            store_row(columns_from(row, second), 0, fma(broadcast(of_q), u_there, y_there))
            new_here, new_there = columns_from(new, first), columns_from(new, second)
            _write(here, there, new_here, new_there, made, u_here, u_there, c)
    return True


@inner(forceinline=True)
def _make(made, q, k, e, log_gate, heads, head, c, scale, beta, erases, normalise):
    """``x, y, k`` and ``g`` of a head, and ``q . k``."""
    first, one = head * c, q.dtype.type(1)
    of_q, of_k, of_e = q.dtype.type(scale), one, beta
    if normalise:
        squares_q = squares_k = broadcast(q.dtype.type(0))
        for i in range(0, c, lanes(q)):
            some_q, some_k = _some(q, first, c, i), _some(k, first, c, i)
            squares_q, squares_k = fma(some_q, some_q, squares_q), fma(some_k, some_k, squares_k)
        of_q /= math.sqrt(total(squares_q) + q.dtype.type(EPS))
        of_k /= math.sqrt(total(squares_k) + q.dtype.type(EPS))
        of_e *= of_k
    channels, products, gate = log_gate.size > heads, broadcast(q.dtype.type(0)), broadcast(one)
    if log_gate.size == heads:
        gate = exp(broadcast(log_gate[head]))
    for i in range(0, c, lanes(q)):
        if channels:
            gate = exp(_some(log_gate, first, c, i))
        some_q, some_k = broadcast(of_q) * _some(q, first, c, i), broadcast(of_k) * _some(k, first, c, i)
        some_e = broadcast(of_e) * _some(e, first, c, i) if erases else broadcast(q.dtype.type(0))
        products = products + some_q * some_k
        columns = columns_from(made, i)
        store(columns, X, gate * some_e)
        store(columns, Y, gate * some_q)
        store(columns, K, some_k)
        store(columns, G, gate)
    return total(products)


@inner(forceinline=True)
def _some(x, first, c, i):
    return load_row(columns_from(rows_at(x.ctypes.data + first * x.itemsize, 1, c, x.dtype), i), 0)


@inner(forceinline=True)
def _read(a, b, made, c):
    """``x S`` of the columns in ``a`` and in ``b``, and ``y S``."""
    x_a = x_b = y_a = y_b = broadcast(a.dtype.type(0))
    for i in range(c):
        x, y, row_a, row_b = spread(made, X, i), spread(made, Y, i), load_row(a, i), load_row(b, i)
        x_a, x_b, y_a, y_b = fma(x, row_a, x_a), fma(x, row_b, x_b), fma(y, row_a, y_a), fma(y, row_b, y_b)
    return x_a, x_b, y_a, y_b


@inner(forceinline=True)
def _write(a, b, new_a, new_b, made, u_a, u_b, c):
    """(3) of these columns."""
    for i in range(c):
        k, gate = spread(made, K, i), spread(made, G, i)
        row_a, row_b = fma(k, u_a, gate * load_row(a, i)), fma(k, u_b, gate * load_row(b, i))
        store_row(new_a, i, row_a)
        store_row(new_b, i, row_b)
