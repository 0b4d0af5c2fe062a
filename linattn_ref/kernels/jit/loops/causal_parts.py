"""The states before the parts of a sequence, so that all parts can be scanned at once.

A single head leaves all cores but one idle, unless its rows are cut into parts. What a part adds to the state depends
on no other: these sums are made side by side, as matrix products, which is half of a scan's arithmetic. Then they are
added up in order. Of two parts with sums ``S, S'`` and products of their gates ``G, G'``, both together have

    G' S + S'   and   G' G                                   (1)

which is associative, so that any grouping of the parts would do; this one is the same for any number of threads.
"""

import numpy as np
from numba import njit, prange

from linattn_ref.kernels.jit.loops.cache import kernel
from linattn_ref.kernels.jit.loops.causal_scan import panels_of, part_rows, write_back
from linattn_ref.kernels.jit.loops.heads import head_of
from linattn_ref.kernels.jit.loops.panel import new_panel, product
from linattn_ref.kernels.jit.loops.vector import broadcast, fma, lanes, load, store
from linattn_ref.kernels.jit.loops.views import load_row

BLOCK = 64  # rows that are summed up at a time


@kernel(
    table=("heads N C", "heads N C", "heads N M", "heads N M"),
    states="heads parts S M",
    gate="heads N",
    x="heads N",
    b_beside="heads N",
    z="heads parts *",
)
def states_before_parts(table, states, step, gate, x, b_beside, z):
    """From the state before part 0 those before all parts, ``states (heads, parts, C, M)`` and ``z (heads, parts, C)``.

    The other arguments are those of `causal_scan.scan`, none of them None; where there is no ``Z``, ``z`` has size 0.
    """
    heads, parts = states.shape[:2]
    decays = np.ones((heads, parts), states.dtype)
    for index in prange(heads * (parts - 1)):
        head, part = index // (parts - 1), index % (parts - 1)
        b, u = head_of(table, 1, head, states.dtype), head_of(table, 2, head, states.dtype)
        some = part_rows(part, parts, len(b), step)
        decays[head, part] = _sum_of_part(
            b[some],
            u[some],
            states[head, part + 1],
            step,
            gate[head, some],
            x[head, some],
            b_beside[head, some],
            z[head, part + 1],
        )
    for head in range(heads):
        for part in range(parts - 1):
            _add(states[head, part + 1], decays[head, part], states[head, part])  # (1)
            _add(z[head, part + 1 : part + 2], decays[head, part], z[head, part : part + 1])


@njit
def _add(target, factor, source):
    """``target += factor * source``"""
    for r in range(target.shape[0]):
        for c in range(target.shape[1]):
            target[r, c] += factor * source[r, c]


@njit
def _sum_of_part(b, u, state, step, gate, x, b_beside, z):
    """What some rows add to the state, into ``state`` and ``z``; returns the product of the gates."""
    n, m, width = b.shape[0], u.shape[1], lanes(u)
    state[:] = 0
    z[:] = 0
    s = panels_of(state)
    share, panel = np.empty(BLOCK, u.dtype), new_panel(BLOCK, u)
    decay = u.dtype.type(1)  # of the gates after a row
    for left in range(n, 0, -BLOCK):
        done = max(left - BLOCK, 0)
        rows = slice(done, left) if step > 0 else slice(n - left, n - done)
        some_b = b[rows]
        for t in range(left - 1, done - 1, -1):
            i = t if step > 0 else n - 1 - t
            share[i - rows.start] = decay * x[i]
            decay *= gate[i]
        for p in range(s.shape[0]):
            some_u = u[rows, p * width : min((p + 1) * width, m)]
            for i in range(left - done):
                store(panel, i, load_row(some_u, i) * broadcast(share[i]))
            product(s[p, : b.shape[1]], some_b.T, panel, True)
            if len(state) > b.shape[1]:
                for i in range(left - done):
                    last_row = fma(broadcast(b_beside[rows.start + i]), load(panel, i), load(s[p], b.shape[1]))
                    store(s[p], b.shape[1], last_row)
        for i in range(left - done):
            for c in range(z.size):
                z[c] += share[i] * some_b[i, c]
    write_back(state, s)
    return decay
