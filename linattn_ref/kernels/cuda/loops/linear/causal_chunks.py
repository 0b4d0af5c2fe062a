"""The kernels of the causal product: chunks of ``TILE`` rows, all of them at the same time.

    sums      what each chunk adds to the state          one block per chunk and tile of the state (`causal_states`)
    scan      from sums to the state before each chunk   a thread per number of the state; the only loop over N
    forward   the output of each chunk                   a block per chunk and tile of columns
    gradient  the same, for the three gradients          likewise

For a chunk with the state ``S`` before it, and the next one's ``S'``, sums of ``j <= i`` and of all ``j``:

    out_i = sum_j (a_i . b_j) u_j + a_i S                    (10)
    S'    = S + sum_j b_j u_j^T                              (11)

Going from the end, as gradients do, "before" means the chunk after, and sums are of ``j >= i``.

With a denominator there is one more column, beside ``u`` or beside ``a`` and ``b``: the arguments called ``beside``.
"""

from linattn_ref.kernels.cuda.loops.device import NATURAL, cuda, inlined, kernel
from linattn_ref.kernels.cuda.loops.tile import (
    EACH,
    PITCH,
    SIDE,
    STEP,
    THREADS,
    TILE,
    add_rows_by_panel,
    add_rows_by_rows,
    add_seen_rows,
    clear,
    load_panel,
    load_rows,
    write,
)


@inlined
def load_state(x, y, panel, states, head, chunk, row, first, transposed):
    """``STEP`` rows and ``TILE`` columns of a state, or of its transpose, from ``(row, first)`` on."""
    head, chunk, row, first = head & NATURAL, chunk & NATURAL, row & NATURAL, first & NATURAL
    for r in range(EACH):
        if transposed:  # neighbouring threads read neighbouring numbers either way
            j = y + SIDE * r
            panel[x, j] = 0
            if first + j < states.shape[2] and row + x < states.shape[3]:
                panel[x, j] = states[head, chunk, first + j, row + x]
        else:
            j = x + SIDE * r
            panel[y, j] = 0
            if row + y < states.shape[2] and first + j < states.shape[3]:
                panel[y, j] = states[head, chunk, row + y, first + j]


@inlined
def scores_to_tile(x, y, tile, scores, backwards):
    """``tile[i, j] = scores_ij`` where row ``i`` sees row ``j``, else 0."""
    for r in range(EACH):
        i = y + SIDE * r
        for s in range(EACH):
            j = x + SIDE * s
            tile[i, j] = 0
            if (j >= i) if backwards else (j <= i):
                tile[i, j] = scores[r, s]


@kernel(threads=THREADS, blocks=2)
def forward(a, b, u, states, z, eps, out, denominator, normalised):
    """``out (heads, N, M)`` and, if ``normalised``, what it is divided by. Grid: heads * chunks, tiles of ``M``."""
    tile = cuda.shared.array((TILE, PITCH), a.dtype)
    panel = cuda.shared.array((STEP, PITCH), a.dtype)
    part = cuda.shared.array(STEP, a.dtype)  # of Z
    scores = cuda.local.array((EACH, EACH), a.dtype)
    acc = cuda.local.array((EACH, EACH), a.dtype)
    total = cuda.local.array(1, a.dtype)
    n, chunks = a.shape[1], states.shape[1]
    head, chunk, first_m = cuda.blockIdx.x // chunks, cuda.blockIdx.x % chunks, cuda.blockIdx.y * TILE
    row = chunk * TILE
    x, y = max(cuda.threadIdx.x, 0), max(cuda.threadIdx.y, 0)
    t = y * SIDE + x
    clear(scores)
    clear(acc)
    total[0] = 0
    for first in range(0, a.shape[2], STEP):
        load_rows(x, y, tile, 0, a, head, row, first)
        load_rows(x, y, tile, STEP, b, head, row, first)
        load_state(x, y, panel, states, head, chunk, first, first_m, False)
        if t < STEP:
            part[t] = 0
            if first + t < z.shape[2]:
                part[t] = z[head, chunk, first + t]
        cuda.syncthreads()
        add_rows_by_rows(x, y, scores, tile)  # (TILE, TILE): a b^T
        add_rows_by_panel(x, y, acc, tile, 0, panel)  # (TILE, TILE): a S
        if normalised and t < TILE:
            c = 0
            while c < STEP:
                total[0] += tile[t, c] * part[c]
                c += 1
        cuda.syncthreads()

    scores_to_tile(x, y, tile, scores, False)
    cuda.syncthreads()
    if normalised and t < TILE:  # the row's sum is its product with the column of ones
        total[0] += eps
        j = 0
        while j < TILE:
            total[0] += tile[t, j]
            j += 1
    for first in range(0, min(TILE, n - row), STEP):
        cuda.syncthreads()
        odd = load_panel(x, y, panel, u, head, row + first, first_m)
        if cuda.syncthreads_or(odd):
            add_seen_rows(x, y, acc, tile, first, panel)
        else:
            add_rows_by_panel(x, y, acc, tile, first, panel)
    cuda.syncthreads()

    if normalised:
        if t < TILE:
            panel[0, t] = total[0]
            if row + t < n and cuda.blockIdx.y == 0:
                denominator[head, row + t] = total[0]
        cuda.syncthreads()
        for r in range(EACH):
            for s in range(EACH):
                if panel[0, y + SIDE * r] == 0:
                    acc[r, s] = 0
                else:
                    acc[r, s] /= panel[0, y + SIDE * r]  # not times 1 / total, which may be infinite
    write(x, y, acc, out, head, row, first_m)


@kernel(threads=THREADS, blocks=2)
def gradient(a, b, u, a_beside, b_beside, states, z, out, backwards, transposed):
    """``out_i = sum_j (a_i . b_j + a'_i b'_j) u_j + a_i S + a'_i z``, ``'`` for beside.

    ``transposed`` stands for ``S^T`` in place of ``S``; ``z`` belongs to the columns of either. Grid: heads * chunks,
    tiles of ``out``'s columns.
    """
    tile = cuda.shared.array((TILE, PITCH), a.dtype)
    panel = cuda.shared.array((STEP, PITCH), a.dtype)
    scores = cuda.local.array((EACH, EACH), a.dtype)
    acc = cuda.local.array((EACH, EACH), a.dtype)
    n, chunks = a.shape[1], states.shape[1]
    head, chunk, first_m = cuda.blockIdx.x // chunks, cuda.blockIdx.x % chunks, cuda.blockIdx.y * TILE
    row = chunk * TILE
    x, y = max(cuda.threadIdx.x, 0), max(cuda.threadIdx.y, 0)
    t = y * SIDE + x
    clear(scores)
    clear(acc)
    for first in range(0, a.shape[2], STEP):
        load_rows(x, y, tile, 0, a, head, row, first)
        load_rows(x, y, tile, STEP, b, head, row, first)
        load_state(x, y, panel, states, head, chunk, first, first_m, transposed)
        cuda.syncthreads()
        add_rows_by_rows(x, y, scores, tile)
        add_rows_by_panel(x, y, acc, tile, 0, panel)
        cuda.syncthreads()

    if t < TILE:
        panel[0, t], tile[t, 0], tile[t, STEP] = 0, 0, 0
        if first_m + t < z.shape[2]:
            panel[0, t] = z[head, chunk, first_m + t]
        if row + t < n:
            tile[t, 0], tile[t, STEP] = a_beside[head, row + t], b_beside[head, row + t]
    cuda.syncthreads()
    for r in range(EACH):
        for s in range(EACH):
            scores[r, s] += tile[y + SIDE * r, 0] * tile[x + SIDE * s, STEP]
            acc[r, s] += tile[y + SIDE * r, 0] * panel[0, x + SIDE * s]
    cuda.syncthreads()
    scores_to_tile(x, y, tile, scores, backwards)
    for first in range(0, min(TILE, n - row), STEP):
        cuda.syncthreads()
        odd = load_panel(x, y, panel, u, head, row + first, first_m)
        if cuda.syncthreads_or(odd):
            add_seen_rows(x, y, acc, tile, first, panel)
        else:
            add_rows_by_panel(x, y, acc, tile, first, panel)
    write(x, y, acc, out, head, row, first_m)
