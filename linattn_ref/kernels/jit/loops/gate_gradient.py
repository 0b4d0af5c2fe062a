"""The gradient of the gates of a causal product: ``d_g_i = <A_i, S_{i-1}>``, equation (8) of the reference.

It alone needs the state of the forward scan and that of the backward scan at the same row. The backward scan runs, so
the forward states must come in reverse order. They are made again from notes, never rewound, for rewinding divides by
gates and subtracts what is nearly equal:

1. A forward scan notes ``S`` at the end of every ``CHUNK`` rows.
2. When the backward scan comes to a chunk, a forward scan of that chunk notes ``S`` before every fourth row.
3. Four rows at a time, the states between are made once more, in registers, and meet ``A`` there.

The state is taken a panel at a time (see `causal_scan`) and ``d_g`` summed over the panels. For one panel, ``lanes``
columns of ``S``, the notes of step 1 are ``lanes / CHUNK`` of the size of ``phi_k``: they go into the array for
``d_phi_k``, which is written only afterwards. Those of step 2 are ``CHUNK / 4`` panels.

The gradient of the gate's logarithm would cost next to nothing as a sum of ``q_i * d_q_i - k_i * d_k_i`` over later
rows. That is a difference of large numbers where gates are strong, and it would be divided by ``g``. For 16384 rows,
``C = M = 64``, that is off by these shares of the largest number:

    gates, uniform      this, float32    by the sum, float32    float64
    0.9 .. 1            2e-7             2e-6                   2e-15
    0.5 .. 1            2e-7             2e-6                   3e-15
    0 .. 1              2e-7             9e-3                   2e-11

So it is not used: gates come as ``g``, of any size, as random feature attention's do, and 0 too, where the sum says
nothing.

Each head is a task; of a single head each panel is, as many as there is room for notes.
"""

import numpy as np
from numba import njit, prange

from linattn_ref.kernels.jit.loops.cache import kernel
from linattn_ref.kernels.jit.loops.causal_scan import panels_of
from linattn_ref.kernels.jit.loops.heads import head_of
from linattn_ref.kernels.jit.loops.panel import new_panel
from linattn_ref.kernels.jit.loops.vector import broadcast, fma, lanes, load, spread, store, total
from linattn_ref.kernels.jit.loops.vector_prefetch import prefetch
from linattn_ref.kernels.jit.loops.views import load_row

CHUNK = 64  # a multiple of 4, and no less than a Vector has lanes


@kernel(
    d_gate="heads N",
    spare="heads N C",
    table=("heads N C", "heads N C", "heads N M", "heads N M"),
    gate="heads N",
    e="heads N",
    x="heads N",
    w="heads N",
    s="heads C S",
    a="heads C S",
)
def gate_gradient(d_gate, spare, table, gate, e, x, w, s, a):
    """Write ``d_gate (heads, N)``, and notes into ``spare (heads, N, C)``.

    ``table`` is `heads.table_of` ``phi_q, phi_k, d_out, v``; ``gate, e, x, w (heads, N)``, of which ``x`` is to
    multiply ``d_out`` and ``w`` ``v``. ``s`` is the state before the first row and ``a`` the gradient of that after the
    last, ``(heads, C, M)``. If they have a column ``M``, then ``e`` is that of ``d_out``, and that of ``v`` is ones.
    """
    heads, n, width, dtype = s.shape[0], gate.shape[1], lanes(s), s.dtype
    tasks = min((s.shape[2] + width - 1) // width, CHUNK // width) if heads == 1 else 1
    one, sums = np.ones(n, dtype), np.zeros((heads, tasks, n), dtype)
    for index in prange(heads * tasks):
        head, task = index // tasks, index % tasks
        notes = spare[head].reshape(-1)  # a share of them for each task
        for first in range(task * width, s.shape[2], tasks * width):
            _add_panel(
                sums[head, task],
                notes[task * len(notes) // tasks : (task + 1) * len(notes) // tasks],
                head_of(table, 0, head, dtype),
                head_of(table, 1, head, dtype),
                gate[head],
                (head_of(table, 2, head, dtype), e[head], x[head]),
                (head_of(table, 3, head, dtype), one, w[head]),
                panels_of(s[head, :, first : first + width])[0],
                panels_of(a[head, :, first : first + width])[0],
                first,
                min(s.shape[2], first + width),
            )
    d_gate[:] = sums.sum(axis=1)


@njit
def _add_panel(d_gate, spare, q, k, gate, d_out, v, s, a, first, stop):
    """Add to ``d_gate`` what the columns ``first:stop`` give; ``d_out`` and ``v`` are ``(rows, beside, factor)``."""
    n, c, width = k.shape[0], k.shape[1], lanes(k)
    last = (n - 1) // CHUNK  # the last chunk
    ends = spare[: last * c * width].reshape(last, c, width)  # S after each chunk but the last
    notes = np.empty((CHUNK // 4 + 1, c, width), k.dtype)  # S before every fourth row, and after the chunk
    u, g, gates = new_panel(CHUNK, k), new_panel(CHUNK, k), np.ones(CHUNK, k.dtype)
    _copy(notes[0], s)
    for chunk in range(last):
        rows = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
        _fill(u, *v, rows, first, stop, CHUNK)
        _run_forward(notes, k[rows], u, gate[rows], CHUNK)
        _copy(ends[chunk], notes[-1])
        _copy(notes[0], notes[-1])
    for chunk in range(last, -1, -1):
        rows = slice(chunk * CHUNK, min((chunk + 1) * CHUNK, n))
        _fill(u, *v, rows, first, stop, -CHUNK)
        _fill(g, *d_out, rows, first, stop, -CHUNK)
        gates[:] = 1
        gates[: rows.stop - rows.start] = gate[rows]
        _copy(notes[0], ends[chunk - 1] if chunk else s)
        _run_forward(notes, k[rows], u, gates, -CHUNK)
        _run_backward(d_gate[rows], notes, a, q[rows], k[rows], u, g, gates)


@njit
def _copy(target, source):
    for c in range(len(source)):
        store(target, c, load(source, c))


@njit
def _fill(panel, x, beside, factor, rows, first, stop, ahead):
    """Columns ``first:stop`` of ``factor * [x, beside]``, 0 in the lanes and rows beyond."""
    m = x.shape[1]
    columns = x[rows, min(first, m) : min(stop, m)]
    for i in range(len(columns)):
        prefetch(columns, i + ahead, 0)
        prefetch(columns, i + ahead, lanes(panel) // 2)
        store(panel, i, load_row(columns, i) * broadcast(factor[rows.start + i]))
        if stop > m:
            panel[i, m - first] = factor[rows.start + i] * beside[rows.start + i]
    for i in range(len(columns), len(panel)):
        store(panel, i, broadcast(panel.dtype.type(0)))


@njit
def _run_forward(notes, k, u, gates, ahead):
    """From ``notes[0]``, the state before some rows, those before every fourth row, and that after."""
    for i in range(0, k.shape[0], 4):
        _four_forward(notes[i // 4], notes[i // 4 + 1], k, u, gates, i, ahead)


@njit(forceinline=True)
def _four_forward(s, after, k, u, gates, i, ahead):
    last = k.shape[0] - 1  # rows beyond have u = 0 and gate 1: which k they meet does not matter
    i1, i2, i3 = min(i + 1, last), min(i + 2, last), min(i + 3, last)
    g0, g1, g2, g3 = (broadcast(gates[i]), broadcast(gates[i + 1]), broadcast(gates[i + 2]), broadcast(gates[i + 3]))
    u0, u1, u2, u3 = load(u, i), load(u, i + 1), load(u, i + 2), load(u, i + 3)
    for c in range(k.shape[1]):
        prefetch(k, i + ahead, 4 * c)
        x = fma(spread(k, i, c), u0, load(s, c) * g0)
        x = fma(spread(k, i1, c), u1, x * g1)
        x = fma(spread(k, i2, c), u2, x * g2)
        x = fma(spread(k, i3, c), u3, x * g3)
        store(after, c, x)


@njit
def _run_backward(d_gate, notes, a, q, k, u, g, gates):
    for i in range((k.shape[0] - 1) // 4 * 4, -1, -4):
        _four_backward(d_gate, notes[i // 4], a, q, k, u, g, gates, i)


@njit(forceinline=True)
def _four_backward(d_gate, s, a, q, k, u, g, gates, i):
    """Take ``A`` from row ``i + 3`` down to ``i``, make the ``S`` before each, and add ``<A, S>`` to ``d_gate``."""
    n = k.shape[0]
    i1, i2, i3 = min(i + 1, n - 1), min(i + 2, n - 1), min(i + 3, n - 1)
    gate0, gate1 = broadcast(gates[i]), broadcast(gates[i + 1])
    gate2, gate3 = broadcast(gates[i + 2]), broadcast(gates[i + 3])
    u0, u1, u2 = load(u, i), load(u, i + 1), load(u, i + 2)
    g0, g1, g2, g3 = load(g, i), load(g, i + 1), load(g, i + 2), load(g, i + 3)
    sum0 = sum1 = sum2 = sum3 = broadcast(k.dtype.type(0))
    for c in range(k.shape[1]):
        prefetch(q, i - CHUNK, 4 * c)
        s0 = load(s, c)
        s1 = fma(spread(k, i, c), u0, s0 * gate0)
        s2 = fma(spread(k, i1, c), u1, s1 * gate1)
        s3 = fma(spread(k, i2, c), u2, s2 * gate2)
        x = fma(spread(q, i3, c), g3, load(a, c))
        sum3 = fma(x, s3, sum3)
        x = fma(spread(q, i2, c), g2, x * gate3)
        sum2 = fma(x, s2, sum2)
        x = fma(spread(q, i1, c), g1, x * gate2)
        sum1 = fma(x, s1, sum1)
        x = fma(spread(q, i, c), g0, x * gate1)
        sum0 = fma(x, s0, sum0)
        store(a, c, x * gate0)
    d_gate[i] += total(sum0)
    if i + 1 < n:
        d_gate[i + 1] += total(sum1)
    if i + 2 < n:
        d_gate[i + 2] += total(sum2)
    if i + 3 < n:
        d_gate[i + 3] += total(sum3)
