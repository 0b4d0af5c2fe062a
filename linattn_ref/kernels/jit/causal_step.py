"""One position of causal linear attention, for decoding: little to compute, so little may come before it.

    S = S + phi_k v^T,   Z = Z + phi_k                       (1)  (C, M), (C,)
    out = phi_q^T S / (phi_q^T Z + eps)                      (2)  (M,), 0 where the denominator is 0

A Python function around the kernel that looked at shapes and strides would take longer than the kernel. What depends on
the layout of an array is therefore decided when the kernel is compiled for it.

Numba takes a tenth of a microsecond to find out about each array that it is given, for all of them as long as the
kernel then computes. A loop that decodes into the same arrays again and again can have that done once (:func:`bind`):
addresses and shapes stand in a table, and the kernel is given the address of that.
"""

from functools import partial
from importlib import import_module

import numpy as np
from numba import njit

from linattn_ref.kernels.jit.cache import serial_kernel
from linattn_ref.kernels.jit.reciprocal import reciprocal, rest
from linattn_ref.kernels.jit.vector import broadcast, fma, lanes, spread, total
from linattn_ref.kernels.jit.views import columns_from, give_back, load_row, rows_at, rows_of, store_row
from linattn_ref.kernels.turns import take_turn as take_turn_in_python


@serial_kernel(phi_q="... C", phi_k="... C", v="... M", s="... C M", z="... C", out="... M", gaps=True)
def step_heads(phi_q, phi_k, v, s, z, eps, out):
    """Write ``out (..., M)`` and bring ``s (..., C, M)`` and ``z (..., C)`` up to date."""
    rows_s, rows_z = rows_of(s), rows_of(z)
    step_rows(rows_of(phi_q), rows_of(phi_k), rows_of(v), rows_s, rows_z, eps, rows_of(out))
    give_back(s, rows_s)
    give_back(z, rows_z)


@serial_kernel
def step_bound_32(table):
    """The same arrays in this order, each contiguous, from the :func:`bind` table at this address."""
    in_turn(_step_bound, table, np.float32)


@serial_kernel
def step_bound_64(table):
    """The same in float64."""
    in_turn(_step_bound, table, np.float64)


@njit
def _step_bound(table, dtype):
    q, k, v = bound_rows(table, 0, dtype), bound_rows(table, 1, dtype), bound_rows(table, 2, dtype)
    s, z, eps = bound_rows(table, 3, dtype), bound_rows(table, 4, dtype), bound_rows(table, 5, dtype)
    step_rows(q, k, v, s, z, eps[0, 0], bound_rows(table, 6, dtype))


@njit
def step_rows(q, k, v, s, z, eps, out, gate=None):
    """The step on rows: ``q, k, z (heads, C)``, ``v, out (heads, M)``, ``s (heads * C, M)``.

    With ``gate (heads, 1)``, or ``(1, 1)`` for all, ``S`` and ``Z`` are multiplied by it first.
    """
    heads, width = q.shape
    if k.shape != q.shape or z.shape != q.shape or v.shape != out.shape or s.shape != (heads * width, v.shape[1]):
        raise ValueError("expected q, k and z (..., C), v and out (..., M), s (..., C, M)")
    if len(v) != heads or (gate is not None and len(gate) != heads and len(gate) != 1):
        raise ValueError("expected the same leading axes of q, k, z, v, out, s and gate")
    for head in range(len(q)):
        share = q.dtype.type(eps)
        for first in range(0, q.shape[1], lanes(q)):
            some_z = columns_from(z, first)
            share += _meet_z(columns_from(q, first), columns_from(k, first), some_z, head, gate)
        more, share = rest(share, q), reciprocal(share, q)  # of (2)
        for first in range(0, v.shape[1], lanes(v)):
            some_v, some_s, some_out = columns_from(v, first), columns_from(s, first), columns_from(out, first)
            _step_columns(q, k, some_v, some_s, some_out, head, share, more, gate)


@njit(forceinline=True)
def _faded(x, gate, head):
    """``x``, times the gate of the head, if there are gates."""
    if gate is None:
        return x
    return x * broadcast(gate[head if len(gate) > 1 else 0, 0])


@njit(forceinline=True)
def _meet_z(q, k, z, head, gate):
    """``z += k``, and ``q . z``."""
    x = _faded(load_row(z, head), gate, head) + load_row(k, head)  # (1)
    store_row(z, head, x)
    return total(x * load_row(q, head))


@njit(forceinline=True)
def _step_columns(q, k, v, s, out, head, share, more, gate):
    """Some columns of ``S``. The sums of the even and of the odd features do not wait for one another."""
    width, u = q.shape[1], load_row(v, head)
    first, even_width = head * width, width - width % 2
    even = odd = broadcast(q.dtype.type(0))
    for c in range(0, even_width, 2):
        x = fma(spread(k, head, c), u, _faded(load_row(s, first + c), gate, head))  # (1)
        y = fma(spread(k, head, c + 1), u, _faded(load_row(s, first + c + 1), gate, head))
        store_row(s, first + c, x)
        store_row(s, first + c + 1, y)
        even, odd = fma(spread(q, head, c), x, even), fma(spread(q, head, c + 1), y, odd)  # (2)
    if even_width < width:
        x = fma(spread(k, head, even_width), u, _faded(load_row(s, first + even_width), gate, head))
        store_row(s, first + even_width, x)
        even = fma(spread(q, head, even_width), x, even)
    store_row(out, head, (even + odd) * broadcast(share) * broadcast(more))


# --- Bound arrays ---------------------------------------------------------------------------------------------------


take_turn = njit(take_turn_in_python)


class Bound(partial):
    """A kernel and the address of its table. A copy, also one sent to another process, has arrays of its own."""

    def __reduce__(self):
        return _bind_again, (self.func.__module__, self.func.__name__, self.turns, *self.arrays)


def bind(kernel, turns, *arrays):
    """``kernel(table)`` as a function without arguments, the table naming these contiguous arrays of one dtype.

    ``turns`` are the two counts of `linattn_ref.kernels.turns`, or None, if nobody else works in the arrays.
    """
    turns = np.zeros((2, 1), np.int64) if turns is None else turns
    rows = [(x.ctypes.data, x.size // x.shape[-1], x.shape[-1]) for x in arrays]
    table = np.array([(*(count.ctypes.data for count in turns), 0), *rows], np.intp)
    bound = Bound(kernel, table.ctypes.data)
    bound.table, bound.turns, bound.arrays = table, turns, arrays  # live as long as the function does
    return bound


def _bind_again(module, name, *turns_and_arrays):
    return bind(getattr(import_module(module), name), *turns_and_arrays)


@njit
def in_turn(step, table, dtype):
    """``step(table, dtype)``, if it is this one's turn: all there is of a kernel for one dtype alone."""
    first = rows_at(table, 1, 3, np.intp)
    take_turn(rows_at(first[0, 0], 1, 1, np.int64)[0], rows_at(first[0, 1], 1, 1, np.int64)[0])
    step(table, dtype)


@njit(forceinline=True)
def bound_rows(table, i, dtype):
    """Array ``i`` of the table as ``(rows, width)``."""
    entries = rows_at(table, i + 2, 3, np.intp)
    return rows_at(entries[i + 1, 0], entries[i + 1, 1], entries[i + 1, 2], dtype)
