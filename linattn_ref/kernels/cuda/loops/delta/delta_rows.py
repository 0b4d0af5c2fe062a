"""What the delta product on a GPU knows of a chunk before any state: faded rows, pairs; and the gate's gradient.

    fade            g, c * Q, -(c * E), ratio_T * K and c_T        one thread per chunk and channel
    pairs           P and -A                                       one thread per key
    gate_gradient   (22), a chunk at a time                        one thread per channel

The formulas are the page's; signs are turned here, so that all that follows adds. ``ratio_ij`` is one number per
channel, so that ``P`` and ``A`` are no matrix products: a thread holds key ``j``, ``STEP`` channels at a time, which
fades from row to row as the state would, and meets each row's query and ``e``,

    key <- g_i * key   for i > j,    P_ij += q_i . key,    A_ij += e_i . key

No number is divided by a gate. One gate for all channels is given to each of them: that takes twice the
multiplications of a product, which is then multiplied by ``ratio``, and is one kernel in place of two.
"""

import math

from linattn_ref.kernels.cuda.loops.arrays import dtype_of
from linattn_ref.kernels.cuda.loops.device import cuda, kernel
from linattn_ref.kernels.cuda.loops.tile import STEP, THREADS, TILE, tiles


def faded_rows(call, q, k, e, log_gate):
    """``g``, ``c * Q``, ``-(c * E)``, ``ratio_T * K (heads, N, C)`` and ``c_T (heads, chunks, C)``.

    ``log_gate (heads, N, C)`` or ``(heads, N, 1)``, and ``e``, may be None; then ``-(c * E)`` is.
    """
    dtype, gated, erases = dtype_of(k), log_gate is not None, e is not None
    gate, q_since, k_until = (call.empty(k.shape[1:], dtype) for _ in range(3))
    e_since = call.empty(k.shape[1:], dtype) if erases else None
    whole = call.empty((tiles(k.shape[1]), k.shape[2]), dtype)
    rows = q, k, e if erases else q, log_gate if gated else q  # what is not there is not read
    written = gate, q_since, e_since if erases else q_since, k_until, whole
    call.for_each(fade, math.prod(whole.shape), *rows, *written, gated, erases)
    return gate, q_since, e_since, k_until, whole


@kernel
def fade(q, k, e, log_gate, gate, q_since, e_since, k_until, whole, gated, erases):
    """Two loops over the rows of a chunk, forward for ``c`` and backward for ``ratio_T``. A thread per channel."""
    product = cuda.local.array(1, k.dtype)
    chunks, width = whole.shape[1], whole.shape[2]
    task = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if task < k.shape[0] * chunks * width:
        head, chunk, c = task // (chunks * width), task // width % chunks, task % width
        start, stop = chunk * TILE, min(chunk * TILE + TILE, k.shape[1])
        product[0] = 1
        for i in range(start, stop):
            gate[head, i, c] = 1
            if gated:
                gate[head, i, c] = math.exp(log_gate[head, i, min(c, log_gate.shape[2] - 1)])
            product[0] *= gate[head, i, c]
            q_since[head, i, c] = product[0] * q[head, i, c]
            if erases:
                e_since[head, i, c] = -product[0] * e[head, i, c]
        whole[head, chunk, c] = product[0]
        product[0] = 1
        for i in range(stop - 1, start - 1, -1):
            k_until[head, i, c] = product[0] * k[head, i, c]
            product[0] *= gate[head, i, c]


def pairs_of_rows(call, q, k, e, gate):
    """``P`` and ``-A (heads, N, TILE)``: a row of a chunk, and in its columns the rows of the chunk; None without e."""
    shape, dtype = (k.shape[1], TILE), dtype_of(k)
    p, a = call.empty(shape, dtype), None if e is None else call.empty(shape, dtype)
    erases = e is not None
    arrays = q, k, e if erases else q, gate, p, a if erases else p
    call.launch(pairs, (call.heads * tiles(k.shape[1]),), (TILE,), *arrays, erases)
    return p, a


@kernel
def pairs(q, k, e, gate, p, a, erases):
    """``P_ij = q_i . (ratio_ij * k_j)`` for ``j <= i``, ``-A_ij = -e_i . (ratio_ij * k_j)`` for ``j < i``, else 0.

    Grid: heads * chunks.
    """
    some_q = cuda.shared.array((TILE, STEP), k.dtype)
    some_e = cuda.shared.array((TILE, STEP), k.dtype)
    some_gates = cuda.shared.array((TILE, STEP), k.dtype)
    key = cuda.local.array(STEP, k.dtype)
    sums = cuda.local.array(2, k.dtype)
    chunks = (k.shape[1] + TILE - 1) // TILE
    head, row, j = cuda.blockIdx.x // chunks, cuda.blockIdx.x % chunks * TILE, cuda.threadIdx.x
    rows = min(TILE, k.shape[1] - row)
    for i in range(rows):
        p[head, row + i, j] = 0
        if erases:
            a[head, row + i, j] = 0
    for first in range(0, k.shape[2], STEP):
        cuda.syncthreads()
        for n in range(j, TILE * STEP, TILE):
            i, c = n // STEP, n % STEP
            some_q[i, c], some_e[i, c], some_gates[i, c] = 0, 0, 0
            if i < rows and first + c < k.shape[2]:
                some_q[i, c] = q[head, row + i, first + c]
                some_gates[i, c] = gate[head, row + i, first + c]
                if erases:
                    some_e[i, c] = e[head, row + i, first + c]
        cuda.syncthreads()
        for c in range(STEP):
            key[c] = 0
            if j < rows and first + c < k.shape[2]:
                key[c] = k[head, row + j, first + c]
        for i in range(j, rows):
            sums[0], sums[1] = 0, 0
            for c in range(STEP):
                if i > j:
                    key[c] *= some_gates[i, c]
                sums[0] += some_q[i, c] * key[c]
                sums[1] += some_e[i, c] * key[c]
            p[head, row + i, j] += sums[0]
            if erases and i > j:
                a[head, row + i, j] -= sums[1]


@kernel
def gate_gradient(q, k, e, of_q, of_k, of_e, d_p, d_a, gate, states, later, d_log_gate, erases):
    """Equation (22); ``of_q, of_e, of_k (heads, N, C)`` are ``S G_i``, ``-S R_i`` and ``dS' u_i``.

    A thread goes from row to row with the keys before it, which fade as the state would. While ``d_q_i`` is summed up,
    ``q_i`` times what has come from the state and from rows up to ``j`` is row ``i``'s part in the gate of row ``j +
    1``. So no state is divided, and a gate of 0 has exactly 0. Grid: heads * chunks, tiles of
    ``C``.
    """
    keys = cuda.shared.array((TILE, TILE), k.dtype)  # one column per thread
    sums = cuda.local.array(4, k.dtype)  # c_i, those of q and of e, and past all rows
    chunks = states.shape[1]
    head, chunk = cuda.blockIdx.x // chunks, cuda.blockIdx.x % chunks
    start, stop = chunk * TILE, min(chunk * TILE + TILE, k.shape[1])
    t = cuda.threadIdx.x
    c = cuda.blockIdx.y * TILE + t
    if c < k.shape[2]:
        for i in range(start, stop):
            d_log_gate[head, i, c] = 0
        sums[0] = 1
        for i in range(start, stop):
            sums[0] *= gate[head, i, c]
            sums[1] = sums[0] * of_q[head, i, c]
            d_log_gate[head, start, c] += q[head, i, c] * sums[1]
            if erases:
                sums[2] = sums[0] * of_e[head, i, c]
                d_log_gate[head, start, c] += e[head, i, c] * sums[2]
            for j in range(i - start):
                keys[j, t] *= gate[head, i, c]
                sums[1] += d_p[head, i, j] * keys[j, t]
                d_log_gate[head, start + j + 1, c] += q[head, i, c] * sums[1]
                if erases:
                    sums[2] += d_a[head, i, j] * keys[j, t]
                    d_log_gate[head, start + j + 1, c] += e[head, i, c] * sums[2]
            keys[i - start, t] = k[head, i, c]
        sums[3] = 0
        for m in range(states.shape[3]):
            sums[3] += later[head, chunk, c, m] * states[head, chunk, c, m]
        sums[3] *= sums[0]
        for i in range(start, stop):
            d_log_gate[head, i, c] += sums[3]
            sums[3] += keys[i - start, t] * of_k[head, i, c]
