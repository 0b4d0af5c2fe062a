"""Exponential features in Numba: `linattn_ref.kernels.common.exponential_features`, once over the memory.

A task is some rows of a head. Of queries a row is gone over twice, for its maximum and for the exponentials, while it
is in the first-level cache. (1) and (2) are there.

Where exponents are products, ``a = directions x``, and all queries see all keys, the rest of linear attention is done
while the features are in the cache, by :func:`over_all_keys`:

    S = sum_j phi(k_j) v_j^T,   Z = sum_j phi(k_j)           (3)
    out_i = phi(q_i)^T S / phi(q_i)^T Z                      (4)

Then a task is a head. ``BLOCK`` rows at a time, exponents are made by a matrix product, panel by panel (see
`panel`), and while they are in the cache, features of them; what these add to the sums, or read from them, is the next
product. Of keys the exponents are made first, since their largest have to be known.
"""

import numpy as np

from linattn_ref.kernels.jit.loops.cache import kernel
from linattn_ref.kernels.jit.loops.inner import inner
from linattn_ref.kernels.jit.loops.rows import as_heads
from linattn_ref.kernels.jit.loops.simd.panel import new_panel, panels_of, product, write_back
from linattn_ref.kernels.jit.loops.simd.vector import (
    broadcast,
    fma,
    keep,
    lanes,
    largest_lane,
    load,
    maximum,
    minimum,
    total,
)
from linattn_ref.kernels.jit.loops.simd.vector_exp import exp
from linattn_ref.kernels.jit.loops.views import columns_from, copy_columns, give_rows, load_row, store_row

ROWS = 64  # of a task
BLOCK = 64  # rows of a head at a time: with C = 256, 64 KiB of float32


def largest(exponent):
    """The largest of each column, ``(..., rows, C) -> (..., C)``."""
    a = as_heads(exponent)
    parts = np.empty((len(a), -(-a.shape[1] // ROWS), a.shape[2]), a.dtype)  # (heads, tasks, C)
    largest_of_parts(parts.shape[0] * parts.shape[1], a, parts)
    return parts.max(axis=1).reshape(*exponent.shape[:-2], -1)


def of_keys(exponent, r):
    """``phi (..., rows, C)``, written over the exponents, or new where these are not contiguous."""
    return _run(exp_of_keys, exponent, r)


def of_queries(exponent, r):
    """``phi (..., rows, C)``, written over the exponents, or new where these are not contiguous."""
    return _run(exp_of_queries, exponent, r)


def over_all_keys(x_q, x_k, directions, v):
    """Equations (1)-(4), with ``r`` the largest exponents of the keys.

    Parameters
    ----------
    x_q, x_k, v : ndarray, ``(..., N, W)``, ``(..., L, W)``, ``(..., L, M)``
        A key with ``-inf`` in its last column is not seen.
    directions : ndarray ``(C, W)``

    Returns
    -------
    phi_q, phi_k, r, s, z, out, denominator : ndarray
        ``(..., N, C)``, ``(..., L, C)``, ``(..., C)``, ``(..., C, M)``, ``(..., C)``, ``(..., N, M)``, ``(..., N)``.
        ``r`` is ``-inf`` where no key is seen, and there ``out`` is 0.
    """
    leading, n, m, c = v.shape[:-2], x_q.shape[-2], v.shape[-1], len(directions)
    x_q, x_k, v = as_heads(x_q), as_heads(x_k), as_heads(v)
    heads, directions = len(v), np.ascontiguousarray(directions.T)  # (W, C)
    phi_q, phi_k = np.empty((heads, n, c), v.dtype), np.empty((heads, v.shape[1], c), v.dtype)
    r, s, z = np.full((heads, c), -np.inf, v.dtype), np.empty((heads, c, m), v.dtype), np.zeros((heads, c), v.dtype)
    out, denominator = np.empty((heads, n, m), v.dtype), np.empty((heads, n), v.dtype)
    add_up_keys(heads, x_k, directions, v, phi_k, r, s, z)
    read_queries(heads, x_q, directions, np.maximum(r, np.finfo(r.dtype).min), s, z, phi_q, out, denominator)
    return tuple(x.reshape(*leading, *x.shape[1:]) for x in (phi_q, phi_k, r, s, z, out, denominator))


def _run(kernel, exponent, r):
    """A kernel whose tasks are ``ROWS`` rows of a head each, with ``r (..., 1 or C)`` as ``(heads, C)``."""
    a = as_heads(exponent)
    kernel(len(a) * -(-a.shape[1] // ROWS), a, np.broadcast_to(r.reshape(len(a), -1), (len(a), a.shape[2])).copy())
    return a.reshape(exponent.shape)


# --- Compiled -------------------------------------------------------------------------------------------------------


@kernel(a="heads rows C", parts="heads tasks C")
def largest_of_parts(index, a, parts):
    """The largest of each column in each ``ROWS`` rows, ``parts (heads, tasks, C)``."""
    tasks = parts.shape[1]
    head, task = index // tasks, index % tasks
    some, top = a[head, task * ROWS : (task + 1) * ROWS], parts[head, task : task + 1]
    for first in range(0, a.shape[2], lanes(a)):
        x, columns = broadcast(a.dtype.type(-np.inf)), columns_from(some, first)
        for i in range(len(some)):
            x = maximum(x, load_row(columns, i))
        store_row(columns_from(top, first), 0, x)


@kernel(a="heads rows C", r="heads C")
def exp_of_keys(index, a, r):
    """Equation (1) for ``a (heads, rows, C)``, ``r (heads, C)``."""
    tasks = (a.shape[1] + ROWS - 1) // ROWS
    head, task = index // tasks, index % tasks
    some, scale = a[head, task * ROWS : (task + 1) * ROWS], r[head : head + 1]
    for first in range(0, a.shape[2], lanes(a)):
        columns, shift = columns_from(some, first), load_row(columns_from(scale, first), 0)
        for i in range(len(some)):
            store_row(columns, i, exp(load_row(columns, i) - shift))  # (1)


@kernel(a="heads rows C", r="heads C")
def exp_of_queries(index, a, r):
    """Equation (2) for ``a (heads, rows, C)``, ``r (heads, C)``."""
    tasks = (a.shape[1] + ROWS - 1) // ROWS
    head, task = index // tasks, index % tasks
    some, scale = a[head, task * ROWS : (task + 1) * ROWS], r[head : head + 1]
    for i in range(len(some)):
        shift = shifted_by_its_largest(some, scale, i)
        for first in range(0, a.shape[2], lanes(a)):
            columns = columns_from(some, first)
            store_row(columns, i, exp(load_row(columns, i) - shift))  # (2)


@inner(forceinline=True)
def shifted_by_its_largest(a, r, i):
    """``a_i + r``, written over ``a_i``; returns the largest in every lane.

    The largest of ``a_i`` is subtracted before ``r`` is added, so that ``r`` does not round away.
    """
    limit = a.dtype.type(np.finfo(a.dtype).max)
    highest = top = broadcast(-limit)
    for first in range(0, a.shape[1], lanes(a)):
        columns = columns_from(a, first)
        highest = maximum(highest, keep(load_row(columns, i), 0, columns.shape[1], -limit))
    highest = minimum(broadcast(limit), broadcast(largest_lane(highest)))
    for first in range(0, a.shape[1], lanes(a)):
        columns = columns_from(a, first)
        x = minimum(broadcast(limit), maximum(broadcast(-limit), load_row(columns, i)))
        x = x - highest + load_row(columns_from(r, first), 0)
        store_row(columns, i, x)
        top = maximum(top, keep(x, 0, columns.shape[1], -limit))
    return broadcast(largest_lane(top))


# --- Over all keys --------------------------------------------------------------------------------------------------

SUMS = {"directions": "W C", "r": "heads C", "s": "heads C M", "z": "heads C"}  # arrays of both kernels


@kernel(x="heads L W", v="heads L M", phi="heads L C", **SUMS)
def add_up_keys(head, x, directions, v, phi, r, s, z):
    """``phi``, ``r``, and the sums of equation (3), for a head; ``directions (W, C)``."""
    _exponents(x[head], panels_of(directions), phi[head], r[head : head + 1])
    width, panel_v = lanes(x), new_panel(BLOCK, x)
    sums = np.zeros(((v.shape[2] + width - 1) // width, phi.shape[2], width), x.dtype)
    for start in range(0, x.shape[1], BLOCK):
        some_phi, some_v = phi[head, start : start + BLOCK], v[head, start : start + BLOCK]
        _features(some_phi, r[head : head + 1], z[head : head + 1])
        for p in range(len(sums)):
            copy_columns(panel_v, some_v, p * width)
            product(sums[p], some_phi.T, panel_v, True)  # (3)
    write_back(s[head], sums)


@inner
def _exponents(x, directions, phi, r):
    """``phi = directions x``, the largest of each column in ``r (1, C)``."""
    panel = new_panel(BLOCK, x)
    for start in range(0, len(x), BLOCK):
        some, some_phi = x[start : start + BLOCK], phi[start : start + BLOCK]
        for p in range(len(directions)):
            product(panel, some, directions[p], False)
            columns, top = columns_from(some_phi, p * lanes(x)), columns_from(r, p * lanes(x))
            largest = load_row(top, 0)
            for i in range(len(some)):
                y = load(panel, i)
                store_row(columns, i, y)
                largest = maximum(largest, y)
            store_row(top, 0, largest)


@inner
def _features(phi, r, z):
    """``phi = exp(phi - r)`` (1), its rows added to ``z (1, C)``."""
    lowest = broadcast(phi.dtype.type(np.finfo(phi.dtype).min))
    for first in range(0, phi.shape[1], lanes(phi)):
        columns, sums = columns_from(phi, first), columns_from(z, first)
        shift, added = maximum(load_row(columns_from(r, first), 0), lowest), load_row(sums, 0)
        for i in range(len(phi)):
            y = exp(load_row(columns, i) - shift)  # (1)
            store_row(columns, i, y)
            added = added + y
        store_row(sums, 0, added)


@kernel(x="heads N W", phi="heads N C", out="heads N M", denominator="heads N", **SUMS)
def read_queries(head, x, directions, r, s, z, phi, out, denominator):
    """``phi`` and equation (4), for a head; ``directions (W, C)``."""
    panels, sums, panel = panels_of(directions), panels_of(s[head]), new_panel(BLOCK, x)
    for start in range(0, x.shape[1], BLOCK):
        some_phi, some_out = phi[head, start : start + BLOCK], out[head, start : start + BLOCK]
        share, some_x = denominator[head, start : start + BLOCK], x[head, start : start + BLOCK]
        for p in range(len(panels)):
            product(panel, some_x, panels[p], False)
            give_rows(some_phi, 0, len(some_phi), panel, p * lanes(x))
        _features_of_queries(some_phi, r[head : head + 1], z[head : head + 1], share)
        for p in range(len(sums)):
            product(panel, some_phi, sums[p], False)
            columns = columns_from(some_out, p * lanes(x))
            for i in range(len(some_out)):
                y = x.dtype.type(0) if share[i] == 0 else x.dtype.type(1) / share[i]
                store_row(columns, i, load(panel, i) * broadcast(y))  # (4)


@inner
def _features_of_queries(phi, r, z, denominator):
    """Equation (2), written over the exponents, and its product with ``z (1, C)``."""
    for i in range(len(phi)):
        shift, added = shifted_by_its_largest(phi, r, i), broadcast(phi.dtype.type(0))
        for first in range(0, phi.shape[1], lanes(phi)):
            columns = columns_from(phi, first)
            y = exp(load_row(columns, i) - shift)  # (2)
            store_row(columns, i, y)
            y = keep(y, 0, columns.shape[1], phi.dtype.type(0))  # in the others it may be inf
            added = fma(load_row(columns_from(z, first), 0), y, added)
        denominator[i] = total(added)
