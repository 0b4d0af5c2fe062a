"""The scan that runs every causal product, forward and backward: Algorithm 1, three positions at a time.

For one head, ``a, b (N, C)``, ``u, out (N, M)``, a state ``S (C, M)`` and numbers ``x_i, y_i`` per row:

    S_i = S_{i-1} + b_i (x_i u_i)^T                          (1)
    out_i = y_i S_i^T a_i                                    (2)

from the first row to the last, or, with ``step = -1``, from the last to the first. Forward it is the product itself,
``a, b, u = phi_q, phi_k, v``; each of the three gradients is one more scan, see `causal_product`.

Where the numbers lie: the columns of ``S``, ``u`` and ``out`` are cut into panels, one Vector wide, and each panel is
scanned by itself, three rows at a time::

    for c in range(C):              x      = row c of the panel of S, in registers
        x += b[i,   c] * u_i        o_i   += a[i,   c] * x
        x += b[i+1, c] * u_i+1      o_i+1 += a[i+1, c] * x
        x += b[i+2, c] * u_i+2      o_i+2 += a[i+2, c] * x

The rows of ``u`` and the sums ``o`` stay in registers throughout, so that a row of ``S`` is loaded and stored once for
six multiply-adds, and ``S`` stays in the first-level cache. (Three rows are as many as fit into 16 registers; with 32,
four or six are no faster, since more of these additions wait for one another.) There is no arithmetic beyond the ``2 C
M`` multiply-adds per row of (1) and (2): what limits the loop is how many of them the core can do. `linattn-ref bench
linear` measures what share of that it reaches (*multiply-adds alone*).

The column of ones
------------------
The denominator is one more column of ones beside ``v``. In the gradients that is a column ``C`` of ``a`` and ``b``,
given as two arrays ``a_C, b_C (N,)``, and ``S`` has a row ``C``. In the forward pass it would be a panel for the single
column ``Z``; instead ``Z`` is scanned with the features in the lanes, before the panels of the same rows.
"""

import numpy as np
from numba import types
from numba.extending import overload

from linattn_ref.kernels.jit.loops.cache import kernel
from linattn_ref.kernels.jit.loops.heads import four_heads_of
from linattn_ref.kernels.jit.loops.inner import inner, once
from linattn_ref.kernels.jit.loops.simd.panel import panels_of, write_back
from linattn_ref.kernels.jit.loops.simd.reciprocal import reciprocal, rest
from linattn_ref.kernels.jit.loops.simd.vector import broadcast, fma, lanes, load, prefetch_early, spread, store, total
from linattn_ref.kernels.jit.loops.views import columns_from, load_row, store_row, unit_stride

BLOCK = 96  # rows that all panels go over before the next rows: what the panels share is still in the cache


# --- Tasks ----------------------------------------------------------------------------------------------------------


@kernel(
    table=("heads N C", "heads N C", "heads N M", "heads N M"),
    states="heads S M",
    rows="heads N",
    z="heads tasks *",
    denominator="heads tasks *",
)
def scan(index, table, states, step, columns, rows, z, eps, denominator):
    """Equations (1) and (2) for some columns of a head; there are ``heads tasks`` of them.

    Parameters
    ----------
    table : `heads.table_of` ``a, b, u, out``
        ``(..., N, C)`` twice, ``(..., N, M)`` twice.
    states : ndarray ``(heads, C or C + 1, M)``
        In: before the first row of the scan; out: after the last one.
    step : int
        1, or -1 for the scan from the last row to the first.
    columns : int
        A task is so many columns of a head.
    rows : tuple of four ndarray ``(heads, N)``, or None
        ``x, y, a_C, b_C``. The last two are read only where the state has a row ``C``.
    z, eps, denominator : ndarray ``(heads, tasks, C)``, number, ndarray ``(heads, tasks, N)``
        Where there is a ``Z`` (else of size 0), it is treated as the states are, each task having its own, the
        denominators are written, and ``y`` is their reciprocal.
    """
    heads, _, width = states.shape
    tasks = (width + columns - 1) // columns
    head, task = index // tasks, index % tasks
    head = head if step > 0 else heads - 1 - head  # what lies beyond a head's rows is fetched, and comes next
    a, b, u, out = four_heads_of(table, 0, head, states.dtype)
    own = slice(task * columns, (task + 1) * columns)
    arrays = a, b, u[:, own], out[:, own], states[head, :, own]
    _scan_columns(*arrays, step, at(rows, head), z[head, task : task + 1], eps, denominator[head, task])


def at(x, index):
    """``x[index]`` of each ``x`` in a tuple of four; of None, None. For compiled code: each is compiled by itself."""
    raise NotImplementedError


@overload(at)
def _at(x, index):
    if isinstance(x, types.NoneType):
        return lambda x, index: None
    return lambda x, index: (x[0][index], x[1][index], x[2][index], x[3][index])


@inner
def _scan_columns(a, b, u, out, state, step, rows, z, eps, denominator):
    n, m, width = u.shape[0], u.shape[1], lanes(u)
    s = panels_of(state)
    y = np.empty(BLOCK, u.dtype)
    for done in range(0, n, BLOCK):
        left = min(done + BLOCK, n)
        block = slice(done, left) if step > 0 else slice(n - left, n - done)
        some_a, some_b, some_rows = a[block], b[block], at(rows, block)
        if rows is not None and z.size:
            _denominators(some_a, some_b, z, eps, denominator[block], y)
            some_rows = (some_rows[0], y, some_rows[2], some_rows[3])
        for p in range(s.shape[0]):
            columns = slice(p * width, min((p + 1) * width, m))
            later = some_a, some_b, p * a.shape[1] // s.shape[0], (p + 1) * a.shape[1] // s.shape[0]
            _scan_panel(s[p], some_a, some_b, u[block, columns], out[block, columns], step, some_rows, later)
        if rows is not None and z.size:
            _go_on(out[block], denominator[block])
    write_back(state, s)


# --- The loop -------------------------------------------------------------------------------------------------------


@once
def _scan_panel(s, a, b, u, out, step, rows, later):
    a, b, n = unit_stride(a), unit_stride(b), a.shape[0]
    first = 0 if step > 0 else n - 1
    whole = n - n % 3
    for i in range(0, whole, 3):
        _fetch(later, u, out, first + step * (i + BLOCK), step)
        _three_rows(s, a, b, u, out, first + step * i, step, rows)
    for i in range(whole, n):
        _one_row(s, a, b, u, out, first + step * i, rows)


@inner(forceinline=True)
def _three_rows(s, a, b, u, out, i0, step, rows):
    i1, i2 = i0 + step, i0 + 2 * step
    u0, u1, u2 = _row(u, i0, rows), _row(u, i1, rows), _row(u, i2, rows)
    o0 = o1 = o2 = broadcast(a.dtype.type(0))
    for c in range(a.shape[1]):
        x = load(s, c)
        x, o0 = _meet(x, spread(b, i0, c), u0, spread(a, i0, c), o0)
        x, o1 = _meet(x, spread(b, i1, c), u1, spread(a, i1, c), o1)
        x, o2 = _meet(x, spread(b, i2, c), u2, spread(a, i2, c), o2)
        store(s, c, x)
    if rows is not None and len(s) > a.shape[1]:  # the column of ones
        x = load(s, a.shape[1])
        x, o0 = _meet(x, broadcast(rows[3][i0]), u0, broadcast(rows[2][i0]), o0)
        x, o1 = _meet(x, broadcast(rows[3][i1]), u1, broadcast(rows[2][i1]), o1)
        x, o2 = _meet(x, broadcast(rows[3][i2]), u2, broadcast(rows[2][i2]), o2)
        store(s, a.shape[1], x)
    _write(out, i0, o0, rows)
    _write(out, i1, o1, rows)
    _write(out, i2, o2, rows)


@inner(forceinline=True)
def _one_row(s, a, b, u, out, i, rows):
    u_i, o = _row(u, i, rows), broadcast(a.dtype.type(0))
    for c in range(a.shape[1]):
        x, o = _meet(load(s, c), spread(b, i, c), u_i, spread(a, i, c), o)
        store(s, c, x)
    if rows is not None and len(s) > a.shape[1]:
        x, o = _meet(load(s, a.shape[1]), broadcast(rows[3][i]), u_i, broadcast(rows[2][i]), o)
        store(s, a.shape[1], x)
    _write(out, i, o, rows)


@inner(forceinline=True)
def _meet(x, b, u, a, o):
    """One row meets row ``c`` of the state: (1), and its part of the sum in (2)."""
    x = fma(b, u, x)
    return x, fma(a, x, o)


@inner(forceinline=True)
def _row(u, i, rows):
    return load_row(u, i) if rows is None else load_row(u, i) * broadcast(rows[0][i])


@inner(forceinline=True)
def _write(out, i, o, rows):
    store_row(out, i, o if rows is None else o * broadcast(rows[1][i]))


@inner(forceinline=True)
def _fetch(later, u, out, i, step):
    """Three rows of the next block. What all panels need of it, a and b, is shared out among them, by columns."""
    a, b, first, stop = later
    for r in range(i, i + 3 * step, step):
        for column in (0, lanes(u) // 2):  # a Vector is up to two cache lines
            prefetch_early(u, r, column)
            prefetch_early(out, r, column)
        for column in range(first, stop, lanes(u) // 2):
            prefetch_early(a, r, column)
            prefetch_early(b, r, column)


# --- The denominator ------------------------------------------------------------------------------------------------


@inner
def _denominators(q, k, z, eps, denominator, y):
    """``denominator_i = q_i . Z_i + eps`` of at most BLOCK rows and its reciprocal ``y``, 0 for 0; ``z (1, C)``."""
    for i in range(len(q)):
        share = broadcast(q.dtype.type(0))
        for first in range(0, q.shape[1], lanes(q)):
            some_z = columns_from(z, first)
            x = load_row(some_z, 0) + load_row(columns_from(k, first), i)
            store_row(some_z, 0, x)
            share = fma(load_row(columns_from(q, first), i), x, share)
        denominator[i] = total(share) + eps
        y[i] = reciprocal(denominator[i], y)


@inner
def _go_on(out, denominator):
    """Multiply by what is left of ``1 / denominator`` where that is infinite and ``y`` was a part of it; 0 for 0."""
    for i in range(len(out)):
        if denominator[i] == 0:
            out[i, :] = 0  # also of an infinite sum
        more = rest(denominator[i], out)
        if more != 1:
            for m in range(out.shape[1]):
                out[i, m] *= more
