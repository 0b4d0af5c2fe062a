"""The gradient of the gates, equation (8) of the reference: ``d_g_i = <A_i, S_{i-1}>``, both states at one position.

``A_i`` runs backward and ``S_{i-1}`` forward, and neither is kept for every row. Within a chunk each is a sum over rows
and the state at its edge, so ``d_g_i`` is a sum of inner products of such terms, decayed (``_gate_gradient`` of the
reference)::

                     terms of S:  rows j < i              start
    terms of A:  rows l >= i    (q_l.k_j)(G_l.u_j)    (q_l S).G_l          X (T + 1, T + 1)
                 end            (k_j A).u_j           <A, S>

``inner_products`` writes ``X`` of every chunk. ``accumulate`` then lets a thread for each row ``l`` of ``X`` go along
``j``, as ``S`` does, ``Y_l <- g_i Y_l + X_li``; and a thread for each ``i`` go down ``l``, as ``A`` does.
"""

from linattn_ref.kernels.cuda.loops.arrays import dtype_of
from linattn_ref.kernels.cuda.loops.causal_chunks import load_state
from linattn_ref.kernels.cuda.loops.device import cuda, inlined, kernel
from linattn_ref.kernels.cuda.loops.tile import (
    BLOCK,
    EACH,
    PITCH,
    SIDE,
    STEP,
    THREADS,
    TILE,
    add_rows_by_panel,
    add_rows_by_rows,
    clear,
    load_rows,
)


def gate_gradient(call, phi_q, phi_k, g, v, gate, share, e, v_beside, weight, states, z_states, later, z_later):
    """``d_gate (heads, N)``; ``e`` and ``v_beside (heads, N)`` stand beside ``g`` and ``v``."""
    d_gate = call.empty(gate.shape[1:], dtype_of(gate))
    count = states.shape[1]
    pairs = call.empty((count, PITCH, PITCH), dtype_of(gate))
    rows = phi_q, phi_k, g, v, share, e, v_beside, weight
    call.launch(inner_products, (call.heads * count,), BLOCK, *rows, states, z_states, later, z_later, pairs)
    call.launch(accumulate, (call.heads * count,), (PITCH,), pairs, gate, d_gate)
    return d_gate


@inlined
def state_by_rows(x, y, total, tile, panel, acc, a, b, states, head, chunk):
    """``(a_t S) . b_t`` of the rows ``t`` of a chunk: that of thread ``t`` goes to ``total[0]``."""
    row = chunk * TILE
    t = y * SIDE + x
    total[0] = 0
    for first_m in range(0, b.shape[2], TILE):
        clear(acc)
        for first in range(0, a.shape[2], STEP):
            load_rows(t, tile, 0, a, head, row, first)
            load_state(t, panel, states, head, chunk, first, first_m, False)
            cuda.syncthreads()
            add_rows_by_panel(x, y, acc, tile, 0, panel)
            cuda.syncthreads()
        for r in range(EACH):
            i = y + SIDE * r
            for s in range(EACH):
                m = x + SIDE * s
                tile[i, m] = 0
                if row + i < b.shape[1] and first_m + m < b.shape[2]:
                    tile[i, m] = acc[r, s] * b[head, row + i, first_m + m]
        cuda.syncthreads()
        if t < TILE:
            for m in range(TILE):
                total[0] += tile[t, m]
        cuda.syncthreads()


@inlined
def vector_by_row(total, a, z, factor, head, chunk, i):
    """``total[0] += (a_i . z) factor_i``."""
    for c in range(a.shape[2]):
        total[0] += a[head, i, c] * z[head, chunk, c] * factor[head, i]


@kernel(threads=THREADS, blocks=2)
def inner_products(phi_q, phi_k, g, v, share, e, v_beside, weight, states, z, later, z_later, pairs):
    """``X (heads, chunks, TILE + 1, TILE + 1)``; its last row is the end, its last column the start."""
    tile = cuda.shared.array((TILE, PITCH), g.dtype)
    panel = cuda.shared.array((STEP, PITCH), g.dtype)
    scores = cuda.local.array((EACH, EACH), g.dtype)
    acc = cuda.local.array((EACH, EACH), g.dtype)
    total = cuda.local.array(1, g.dtype)
    n, chunks = g.shape[1], states.shape[1]
    head, chunk = cuda.blockIdx.x // chunks, cuda.blockIdx.x % chunks
    row = chunk * TILE
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    t = y * SIDE + x

    clear(scores)
    for first in range(0, phi_q.shape[2], STEP):
        load_rows(t, tile, 0, phi_q, head, row, first)
        load_rows(t, tile, STEP, phi_k, head, row, first)
        cuda.syncthreads()
        add_rows_by_rows(x, y, scores, tile)
        cuda.syncthreads()
    clear(acc)
    for first in range(0, g.shape[2], STEP):
        load_rows(t, tile, 0, g, head, row, first)
        load_rows(t, tile, STEP, v, head, row, first)
        cuda.syncthreads()
        add_rows_by_rows(x, y, acc, tile)
        cuda.syncthreads()
    for r in range(EACH):
        i = row + y + SIDE * r
        for s in range(EACH):
            j = row + x + SIDE * s
            if i < n and j < n:
                both = acc[r, s] + e[head, i] * v_beside[head, j]
                pairs[head, chunk, i - row, j - row] = scores[r, s] * (share[head, i] * both * weight[head, j])

    state_by_rows(x, y, total, tile, panel, acc, phi_q, g, states, head, chunk)
    if t < TILE and row + t < n:
        vector_by_row(total, phi_q, z, e, head, chunk, row + t)
        pairs[head, chunk, t, TILE] = share[head, row + t] * total[0]
    state_by_rows(x, y, total, tile, panel, acc, phi_k, v, later, head, chunk)
    if t < TILE and row + t < n:
        vector_by_row(total, phi_k, z_later, v_beside, head, chunk, row + t)
        pairs[head, chunk, TILE, t] = weight[head, row + t] * total[0]

    total[0] = 0
    for k in range(t, states.shape[2] * states.shape[3], THREADS):
        c, m = k // states.shape[3], k % states.shape[3]
        total[0] += states[head, chunk, c, m] * later[head, chunk, c, m]
    if t == 0:
        for c in range(z.shape[2]):
            total[0] += z[head, chunk, c] * z_later[head, chunk, c]
    tile[y, x] = total[0]
    cuda.syncthreads()
    if t == 0:
        total[0] = 0
        for k in range(THREADS):
            total[0] += tile[k // SIDE, k % SIDE]
        pairs[head, chunk, TILE, TILE] = total[0]


@kernel
def accumulate(pairs, gate, d_gate):
    """``X`` becomes ``Y``, then sums of its columns; a thread a row, then a thread a column."""
    n, chunks = gate.shape[1], pairs.shape[1]
    head, chunk = cuda.blockIdx.x // chunks, cuda.blockIdx.x % chunks
    row, t = chunk * TILE, cuda.threadIdx.x
    rows = min(TILE, n - row)
    if t < rows or t == TILE:
        y = pairs[head, chunk, t, TILE]  # S before row 0 is the start
        for i in range(rows):
            term = pairs[head, chunk, t, i]
            pairs[head, chunk, t, i] = y
            y = gate[head, row + i] * y + term
    cuda.syncthreads()
    if t < rows:
        total = pairs[head, chunk, TILE, t] + pairs[head, chunk, rows - 1, t]  # A after the last row is the end
        for l in range(rows - 2, t - 1, -1):
            total = gate[head, row + l + 1] * total + pairs[head, chunk, l, t]
        d_gate[head, row + t] = total
