"""The states of the causal product: what each chunk adds, and from that the state before each chunk.

The formulas are those of `causal_chunks`. Only ``scan`` goes from chunk to chunk, with a thread per number of a state.
"""

import math

from linattn_ref.kernels.cuda.loops.arrays import dtype_of
from linattn_ref.kernels.cuda.loops.device import cuda, kernel
from linattn_ref.kernels.cuda.loops.rows import filled
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

AHEAD = 8  # chunks that a thread of `scan` reads before it needs them: memory takes long to answer


@kernel(threads=THREADS, blocks=2)
def sums(b, u, beside, states, z):
    """``states[head, chunk] = sum_j b_j u_j^T (C, M)``, and ``z[head, chunk] = sum_j beside_j b_j (C,)``.

    Grid: heads * chunks, tiles of ``C``, tiles of ``M``.
    """
    left = cuda.shared.array((STEP, PITCH), b.dtype)
    right = cuda.shared.array((STEP, PITCH), b.dtype)
    acc = cuda.local.array((EACH, EACH), b.dtype)
    total = cuda.local.array(1, b.dtype)
    n, chunks = b.shape[1], states.shape[1]
    head, chunk = cuda.blockIdx.x // chunks, cuda.blockIdx.x % chunks
    first_c, first_m = cuda.blockIdx.y * TILE, cuda.blockIdx.z * TILE
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    t = y * SIDE + x
    clear(acc)
    total[0] = 0
    for row in range(chunk * TILE, min(chunk * TILE + TILE, n), STEP):
        load_panel(t, left, b, head, row, first_c)
        load_panel(t, right, u, head, row, first_m)
        cuda.syncthreads()
        if t < TILE and cuda.blockIdx.z == 0:
            for j in range(min(STEP, n - row)):
                total[0] += left[j, t] * beside[head, row + j]
        add_panel_by_panel(x, y, acc, left, right)
        cuda.syncthreads()
    for r in range(EACH):
        c = first_c + y + SIDE * r
        for s in range(EACH):
            m = first_m + x + SIDE * s
            if c < states.shape[2] and m < states.shape[3]:
                states[head, chunk, c, m] = acc[r, s]
    if t < TILE and cuda.blockIdx.z == 0 and first_c + t < z.shape[2]:
        z[head, chunk, first_c + t] = total[0]


@kernel
def scan(states, start, end, backwards):
    """In place of each chunk's sum the state before it, from ``start`` to ``end (heads, size)``.

    Grid: heads * blocks of ``THREADS`` numbers of a state.
    """
    ahead = cuda.local.array(AHEAD, states.dtype)
    chunks, size = states.shape[1], states.shape[2]
    blocks = (size + THREADS - 1) // THREADS
    head, e = cuda.blockIdx.x // blocks, cuda.blockIdx.x % blocks * THREADS + cuda.threadIdx.x
    if e < size:
        s = start[head, e]
        for first in range(0, chunks, AHEAD):
            for turn in range(AHEAD):
                if first + turn < chunks:
                    chunk = chunks - 1 - first - turn if backwards else first + turn
                    ahead[turn] = states[head, chunk, e]
            for turn in range(AHEAD):
                if first + turn < chunks:
                    chunk = chunks - 1 - first - turn if backwards else first + turn
                    states[head, chunk, e] = s
                    s += ahead[turn]
        end[head, e] = s


def scanned(call, x, start, backwards):
    """The state after the last chunk; in ``x (heads, chunks, ...)``, in place of sums, those before each chunk."""
    count, shape, size = x.shape[1], x.shape[2:], math.prod(x.shape[2:])
    start = filled(call, (size,), dtype_of(x), 0) if start is None else call.flat(start, axes=len(shape))
    end = call.empty(shape, dtype_of(x))
    views = (
        array.reshape((call.heads, *axes)) for array, axes in ((x, (count, size)), (start, (size,)), (end, (size,)))
    )
    call.launch(scan, (call.heads * -(-size // THREADS),), (THREADS,), *views, backwards)
    return end
