"""The kernels of the delta product that meet the state: chunks of ``TILE`` rows, one after the other or all at once.

    correct    u = (I + A)^{-1} (x + a S) and the next S, chunk after chunk   a block per tile of columns of S
    fade_on    the same without a correction                                  a thread per number of the state
    read       x = a S + pairs u                                              a block per chunk and tile of columns
    gradient   d_q, d_e, d_k                                                  likewise

Only the first two take turns. ``correct`` solves its triangular system in blocks of ``SIDE`` rows: those of a block
among one another by forward substitution in shared memory, a thread per column; what they send to all rows after them
is a product of tiles. From the last chunk to the first, and with ``A^T`` from the last row to the first, it is the
backward pass:

    pass        x        a              u      b            what else is added to S
    forward     V        -(c * E)       U      ratio_T K    0                (13), (15)
    backward    P^T G    ratio_T * K    R      -(c * E)     (c * Q)^T G      (16), (18)
"""

from linattn_ref.kernels.cuda.loops.device import NATURAL, cuda, inlined, kernel
from linattn_ref.kernels.cuda.loops.linear.causal_chunks import load_state
from linattn_ref.kernels.cuda.loops.tile import (
    EACH,
    HALF,
    PITCH,
    SIDE,
    STEP,
    THREADS,
    TILE,
    add_panel_by_panel,
    add_rows_by_panel,
    add_rows_by_rows,
    add_seen_panel,
    clear,
    load_panel,
    load_rows,
    write,
)

# --- In turns -------------------------------------------------------------------------------------------------------


@inlined
def load_pairs(x, y, panel, pairs, head, row, first, transposed):
    """What the rows of a chunk have with ``STEP`` of its rows, ``panel[c, i] = pairs_ij`` for ``j = first + c``.

    ``transposed`` stands for ``pairs_ji``. 0 beyond the end.
    """
    if transposed:  # neighbouring threads read neighbouring numbers either way
        load_panel(x, y, panel, pairs, head, row + first, 0)
    else:
        load_rows(x, y, panel.T, 0, pairs, head, row, first)


@inlined
def solve(x, y, t, tile, panel, acc, pairs, head, row, backwards):
    """``tile = (I - pairs)^{-1} tile``, with ``pairs^T`` from the last row to the first going ``backwards``."""
    for turn in range(0, TILE, SIDE):
        first = TILE - SIDE - turn if backwards else turn
        load_pairs(x, y, panel, pairs, head, row, first, backwards)
        cuda.syncthreads()
        if t < TILE:  # a block's rows among one another, a thread per column
            for step in range(1, SIDE):
                i = SIDE - 1 - step if backwards else step
                for back in range(step):
                    j = SIDE - 1 - back if backwards else back
                    tile[first + i, t] += panel[j, first + i] * tile[first + j, t]
        cuda.syncthreads()
        clear(acc)  # what they send to the others
        c = 0
        while c < SIDE:
            for r in range(EACH):
                for s in range(EACH):
                    acc[r, s] += panel[c, y + SIDE * r] * tile[first + c, x + SIDE * s]
            c += 1
        cuda.syncthreads()
        for r in range(EACH):
            i = y + SIDE * r
            for s in range(EACH):
                if (i < first) if backwards else (i >= first + SIDE):
                    tile[i, x + SIDE * s] += acc[r, s]
        cuda.syncthreads()


@kernel(threads=THREADS, blocks=1)
def correct(x_rows, a, b, pairs, whole, states, s, u, backwards):
    """``u = (I - pairs)^{-1} (x + a S)``, ``S <- c_T S + what states holds + b^T u``, chunk after chunk.

    ``s (heads, C, M)`` goes from the state before all chunks to that after them; ``states (heads, chunks, C, M)`` gets
    that before each chunk, in the order in which they are gone through. Grid: heads, tiles of ``M``.
    """
    tile = cuda.shared.array((TILE, PITCH), a.dtype)
    panel = cuda.shared.array((STEP, PITCH), a.dtype)
    acc = cuda.local.array((EACH, EACH), a.dtype)
    n, chunks = a.shape[1], states.shape[1]
    head, first_m = cuda.blockIdx.x, cuda.blockIdx.y * TILE
    x, y = max(cuda.threadIdx.x, 0), max(cuda.threadIdx.y, 0)
    t = y * SIDE + x
    for turn in range(chunks):
        chunk = chunks - 1 - turn if backwards else turn
        row = chunk * TILE
        clear(acc)
        for first in range(0, a.shape[2], STEP):
            load_rows(x, y, tile, 0, a, head, row, first)
            load_panel(x, y, panel, s, head, first, first_m)
            cuda.syncthreads()
            add_rows_by_panel(x, y, acc, tile, 0, panel)
            cuda.syncthreads()
        for r in range(EACH):
            i = y + SIDE * r
            for each in range(EACH):
                m = first_m + x + SIDE * each
                tile[i, x + SIDE * each] = acc[r, each]
                if row + i < n and m < u.shape[2]:
                    tile[i, x + SIDE * each] += x_rows[head, row + i, m]
        cuda.syncthreads()
        solve(x, y, t, tile, panel, acc, pairs, head, row, backwards)  # (13), (16)
        for r in range(EACH):
            i = y + SIDE * r
            for each in range(EACH):
                m = first_m + x + SIDE * each
                if row + i < n and m < u.shape[2]:
                    u[head, row + i, m] = tile[i, x + SIDE * each]
        cuda.syncthreads()  # the block reads what it has just written
        for first in range(0, a.shape[2], TILE):
            clear(acc)
            for j in range(0, TILE, STEP):
                load_panel(x, y, tile, b, head, row + j, first)
                load_panel(x, y, panel, u, head, row + j, first_m)
                cuda.syncthreads()
                add_panel_by_panel(x, y, acc, tile, panel)
                cuda.syncthreads()
            for r in range(EACH):
                c = first + y + SIDE * r
                for each in range(EACH):
                    m = first_m + x + SIDE * each
                    if c < s.shape[1] and m < s.shape[2]:
                        acc[r, each] += states[head, chunk, c, m]
                        states[head, chunk, c, m] = s[head, c, m]
                        s[head, c, m] = whole[head, chunk, c] * s[head, c, m] + acc[r, each]  # (15), (18)
        cuda.syncthreads()


@kernel
def fade_on(states, whole, s, backwards):
    """``S <- c_T S + what states holds``, in whose place comes ``S`` as it was. Grid: heads * blocks of numbers."""
    value = cuda.local.array(2, s.dtype)
    chunks, width, size = states.shape[1], s.shape[2], s.shape[1] * s.shape[2]
    blocks = (size + THREADS - 1) // THREADS
    head, e = cuda.blockIdx.x // blocks, cuda.blockIdx.x % blocks * THREADS + cuda.threadIdx.x
    if e < size:
        c, m = e // width, e % width
        value[0] = s[head, c, m]
        for turn in range(chunks):
            chunk = chunks - 1 - turn if backwards else turn
            value[1] = states[head, chunk, c, m]
            states[head, chunk, c, m] = value[0]
            value[0] = whole[head, chunk, c] * value[0] + value[1]
        s[head, c, m] = value[0]


# --- All chunks at once ---------------------------------------------------------------------------------------------


@kernel(threads=THREADS, blocks=2)
def read(a, pairs, u, states, out, reads_state, transposed):
    """``out = a S + pairs u`` (14), the first only if ``reads_state``. Grid: heads * chunks, tiles of ``out``."""
    tile = cuda.shared.array((TILE, PITCH), a.dtype)
    panel = cuda.shared.array((STEP, PITCH), a.dtype)
    acc = cuda.local.array((EACH, EACH), a.dtype)
    chunks = states.shape[1]
    head, chunk, first_m = cuda.blockIdx.x // chunks, cuda.blockIdx.x % chunks, cuda.blockIdx.y * TILE
    row = chunk * TILE
    x, y = max(cuda.threadIdx.x, 0), max(cuda.threadIdx.y, 0)
    clear(acc)
    if reads_state:
        for first in range(0, a.shape[2], STEP):
            load_rows(x, y, tile, 0, a, head, row, first)
            load_state(x, y, panel, states, head, chunk, first, first_m, False)
            cuda.syncthreads()
            add_rows_by_panel(x, y, acc, tile, 0, panel)
            cuda.syncthreads()
    for first in range(0, TILE, STEP):
        load_pairs(x, y, panel, pairs, head, row, first, transposed)
        odd = load_panel(x, y, tile, u, head, row + first, first_m)
        if cuda.syncthreads_or(odd):
            add_seen_panel(x, y, acc, panel, tile)
        else:
            add_panel_by_panel(x, y, acc, panel, tile)
        cuda.syncthreads()
    write(x, y, acc, out, head, row, first_m)


@inlined
def load_rows_and_gates(x, y, panel, b, gate, head, row, first):
    """``HALF`` rows of ``b[head]``, 0 beyond its end, and below them their gates."""
    head, row, first = head & NATURAL, row & NATURAL, first & NATURAL
    for s in range(EACH):
        c = x + SIDE * s
        if y < HALF:
            panel[y, c] = 0
            if row + y < b.shape[1] and first + c < b.shape[2]:
                panel[y, c] = b[head, row + y, first + c]
        else:
            panel[y, c] = 1
            if row + y - HALF < gate.shape[1] and first + c < gate.shape[2]:
                panel[y, c] = gate[head, row + y - HALF, first + c]


@kernel(threads=THREADS, blocks=2)
def gradient(g, u, states, b, gate, out, of_state, sign, adds, backwards, keeps):
    """``z_i = sign c_i * (S g_i) + sum_j d_ij ratio_ij * b_j``, ``d_ij = sign g_i . u_j``: (19) and (20), and (21).

    It is the state's own recurrence, a row of ``out`` at a time: from ``z = S g_i`` on ``z <- gate_j * z + d_ij b_j``,
    for ``j`` up to ``i``. Backwards ``j`` goes from the end down to ``i``, and ``z`` fades after each but row ``i``.
    If it ``adds``, ``z`` begins with 0 and is added to ``out``, and row ``i`` does not meet itself. A sign of -1 is
    that of ``e``, which meets no row that is its own. If it ``keeps``, ``of_state`` gets ``sign S g_i``. Grid: heads *
    chunks, tiles of ``C``.
    """
    tile = cuda.shared.array((TILE, PITCH), g.dtype)
    panel = cuda.shared.array((STEP, PITCH), g.dtype)
    scores = cuda.local.array((EACH, EACH), g.dtype)
    acc = cuda.local.array((EACH, EACH), g.dtype)
    n, chunks = g.shape[1], states.shape[1]
    head, chunk, first_c = cuda.blockIdx.x // chunks, cuda.blockIdx.x % chunks, cuda.blockIdx.y * TILE
    row = chunk * TILE
    x, y = max(cuda.threadIdx.x, 0), max(cuda.threadIdx.y, 0)
    clear(scores)
    clear(acc)
    for first in range(0, g.shape[2], STEP):
        load_rows(x, y, tile, 0, g, head, row, first)
        load_rows(x, y, tile, STEP, u, head, row, first)
        load_state(x, y, panel, states, head, chunk, first, first_c, True)
        cuda.syncthreads()
        add_rows_by_rows(x, y, scores, tile)
        if not adds:
            add_rows_by_panel(x, y, acc, tile, 0, panel)
        cuda.syncthreads()
    for r in range(EACH):
        i = y + SIDE * r
        for s in range(EACH):
            j = x + SIDE * s
            acc[r, s] *= sign
            tile[i, j] = 0
            if (i != j or sign > 0) and (j >= i if backwards else j <= i):
                tile[i, j] = sign * scores[r, s]  # (17)
            if keeps and row + i < n and first_c + j < out.shape[2]:
                of_state[head, row + i, first_c + j] = acc[r, s]
    for turn in range(0, TILE, HALF):
        first = TILE - HALF - turn if backwards else turn
        cuda.syncthreads()
        load_rows_and_gates(x, y, panel, b, gate, head, row + first, first_c)
        cuda.syncthreads()
        for step in range(HALF):
            back = HALF - 1 - step if backwards else step
            j = first + back
            for r in range(EACH):
                i = y + SIDE * r
                if not backwards and j <= i:
                    for s in range(EACH):
                        acc[r, s] *= panel[HALF + back, x + SIDE * s]
                if (j >= i) if backwards else (j <= i):  # nothing of NaN in a row that it does not see
                    for s in range(EACH):
                        acc[r, s] += tile[i, j] * panel[back, x + SIDE * s]
                if backwards and j > i:
                    for s in range(EACH):
                        acc[r, s] *= panel[HALF + back, x + SIDE * s]
    for r in range(EACH):
        i = row + y + SIDE * r
        for s in range(EACH):
            c = first_c + x + SIDE * s
            if i < n and c < out.shape[2]:
                if adds:
                    acc[r, s] += out[head, i, c]
                out[head, i, c] = acc[r, s]
