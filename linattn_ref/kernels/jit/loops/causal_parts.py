"""The states before the parts of a sequence, so that all parts can be scanned at once.

A single head leaves all cores but one idle, unless its rows are cut into parts. What a part adds to the state depends
on no other: these sums are made side by side, as matrix products, which is half of a scan's arithmetic. Then the caller
adds them up in order, so that any number of threads gives the same bits.
"""

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
    x="heads N",
    b_beside="heads N",
    z="heads parts *",
)
def sums_of_parts(table, states, step, x, b_beside, z):
    """What each part but the last adds goes to the next one's ``states (heads, parts, C, M)``, ``z (heads, parts, C)``.

    The other arguments are those of `causal_scan.scan`, none of them None; where there is no ``Z``, ``z`` has size 0.
    """
    heads, parts = states.shape[:2]
    for index in prange(heads * (parts - 1)):
        head, part = index // (parts - 1), index % (parts - 1)
        b, u = head_of(table, 1, head, states.dtype), head_of(table, 2, head, states.dtype)
        some = part_rows(part, parts, len(b), step)
        rows = b[some], u[some], x[head, some], b_beside[head, some]
        _sum_of_part(*rows, states[head, part + 1], z[head, part + 1])


@njit
def _sum_of_part(b, u, x, b_beside, state, z):
    """What some rows add to the state, into ``state`` and ``z``."""
    n, m, width = b.shape[0], u.shape[1], lanes(u)
    state[:] = 0
    z[:] = 0
    s, panel = panels_of(state), new_panel(BLOCK, u)
    for first in range(0, n, BLOCK):
        rows = slice(first, min(first + BLOCK, n))
        some_b, some_x = b[rows], x[rows]
        for p in range(s.shape[0]):
            some_u = u[rows, p * width : min((p + 1) * width, m)]
            for i in range(len(some_b)):
                store(panel, i, load_row(some_u, i) * broadcast(some_x[i]))
            product(s[p, : b.shape[1]], some_b.T, panel, True)
            if len(state) > b.shape[1]:
                for i in range(len(some_b)):
                    store(s[p], b.shape[1], fma(broadcast(b_beside[first + i]), load(panel, i), load(s[p], b.shape[1])))
        for i in range(len(some_b)):
            for c in range(z.size):
                z[c] += some_b[i, c]
    write_back(state, s)
