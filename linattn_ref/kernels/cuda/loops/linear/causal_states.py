"""The states of the causal product: what each chunk adds, and from that the state before each chunk.

The formulas are those of `causal_chunks`. Only ``scan`` goes from chunk to chunk, with a thread per number of a state.
"""

from linattn_ref.kernels.cuda.loops.arrays import dtype_of
from linattn_ref.kernels.cuda.loops.device import NATURAL, cuda, inlined, kernel
from linattn_ref.kernels.cuda.loops.tile import (
    EACH,
    PITCH,
    SIDE,
    STEP,
    THREADS,
    TILE,
    add_panel_by_panel,
    clear,
    load_panel,
)

AHEAD = 32  # chunks that a thread of `scan` reads before it needs them, each in a register: memory answers late


@kernel(threads=THREADS, blocks=2)
def sums(b, u, beside, states, z):
    """``states[head, chunk] = sum_j b_j u_j^T (C, M)``, and ``z[head, chunk] = sum_j beside_j b_j (C,)``.

    Grid: heads * chunks, tiles of ``C``, tiles of ``M``.
    """
    left = cuda.shared.array((STEP, PITCH), b.dtype)
    right = cuda.shared.array((STEP, PITCH), b.dtype)
    weights = cuda.shared.array(STEP, b.dtype)
    acc = cuda.local.array((EACH, EACH), b.dtype)
    total = cuda.local.array(1, b.dtype)
    n, chunks = b.shape[1], states.shape[1]
    head, chunk = cuda.blockIdx.x // chunks, cuda.blockIdx.x % chunks
    first_c, first_m = cuda.blockIdx.y * TILE, cuda.blockIdx.z * TILE
    x, y = max(cuda.threadIdx.x, 0), max(cuda.threadIdx.y, 0)
    t = y * SIDE + x
    clear(acc)
    total[0] = 0
    for row in range(chunk * TILE, min(chunk * TILE + TILE, n), STEP):
        load_panel(x, y, left, b, head, row, first_c)
        load_panel(x, y, right, u, head, row, first_m)
        if t < STEP:
            weights[t] = 0
            if row + t < n:
                weights[t] = beside[head, row + t]
        cuda.syncthreads()
        if t < TILE and cuda.blockIdx.z == 0:
            j = 0
            while j < STEP:
                total[0] += left[j, t] * weights[j]
                j += 1
        add_panel_by_panel(x, y, acc, left, right)
        cuda.syncthreads()
    head, chunk, first_c, first_m = head & NATURAL, chunk & NATURAL, first_c & NATURAL, first_m & NATURAL
    for r in range(EACH):
        c = first_c + y + SIDE * r
        for s in range(EACH):
            m = first_m + x + SIDE * s
            if c < states.shape[2] and m < states.shape[3]:
                states[head, chunk, c, m] = acc[r, s]
    if t < TILE and cuda.blockIdx.z == 0 and first_c + t < z.shape[2]:
        z[head, chunk, first_c + t] = total[0]


@inlined
def scan_number(states, start, end, ahead, head, e, backwards):
    """Number ``e`` of a state: each chunk's sum is replaced by what it was before that chunk."""
    chunks, total = states.shape[1], start[head, e]
    first, onward = (chunks - 1, -1) if backwards else (0, 1)
    for done in range(0, chunks, AHEAD):
        turn = 0
        while turn < AHEAD:
            chunk = (first + onward * (done + turn)) & NATURAL
            if done + turn < chunks:
                ahead[turn] = states[head, chunk, e]
            turn += 1
        turn = 0
        while turn < AHEAD:
            chunk = (first + onward * (done + turn)) & NATURAL
            if done + turn < chunks:
                states[head, chunk, e] = total
                total += ahead[turn]
            turn += 1
    end[head, e] = total


@kernel
def scan(states, z, s_start, z_start, s_end, z_end, backwards):
    """In place of each chunk's sums the states before it, from ``start`` to ``end (heads, size)``.

    Grid: heads * blocks of ``THREADS`` numbers, those of ``S`` and after them those of ``Z``.
    """
    ahead = cuda.local.array(AHEAD, states.dtype)
    size, width = states.shape[2], z.shape[2]
    blocks = (size + width + THREADS - 1) // THREADS
    head = max(cuda.blockIdx.x // blocks, 0)
    e = max(cuda.blockIdx.x % blocks * THREADS + cuda.threadIdx.x, 0)
    if e < size:
        scan_number(states, s_start, s_end, ahead, head, e, backwards)
    elif e - size < width:
        scan_number(z, z_start, z_end, ahead, head, e - size, backwards)


def scanned(call, states, z, s_start, z_start, backwards):
    """The states after the last chunk; in ``states`` and ``z``, in place of each chunk's sums, those before it."""
    count, c, m = states.shape[1:]
    s_start = call.full((c, m), dtype_of(states), 0) if s_start is None else call.flat(s_start)
    z_start = call.full((c,), dtype_of(states), 0) if z_start is None else call.flat(z_start, axes=1)
    s_end, z_end = call.empty((c, m), dtype_of(states)), call.empty((c,), dtype_of(states))
    s_flat, s_end_flat = (x.reshape((call.heads, c * m)) for x in (s_start, s_end))
    arrays = states.reshape((call.heads, count, c * m)), z, s_flat, z_start, s_end_flat, z_end
    call.launch(scan, (call.heads * -(-(c * m + c) // THREADS),), (THREADS,), *arrays, backwards)
    return s_end, z_end
