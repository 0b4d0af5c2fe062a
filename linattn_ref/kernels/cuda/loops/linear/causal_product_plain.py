"""Algorithm 1 on a GPU as it stands: a thread for each column of the state, or each row, that goes from row to row.

This is how fast-transformers' first CUDA kernel and every first attempt look. A thread needs nothing of its neighbours,
and neighbouring threads read neighbouring numbers. But there are only ``heads * M`` threads, some hundreds, where a GPU
keeps a hundred thousand busy; and each waits for memory ``N C`` times, one time after the other. `causal_chunks` cuts
the rows into chunks to have more of them, and keeps a tile of numbers in registers to wait less often.

:func:`forward_by_row` is (1) and (2) of `causal_product`, with a thread per column ``m`` of ``S``. The
gradients (4)-(6) are the same loop over other arrays, the last two from the end; where the sum goes over ``m``, a
thread has a row ``c`` of ``S`` or ``A``.
"""

from linattn_ref.kernels.cuda.loops.arrays import Call, dtype_of
from linattn_ref.kernels.cuda.loops.device import cuda, kernel
from linattn_ref.kernels.cuda.loops.rows import copy_or_zeros
from linattn_ref.kernels.cuda.loops.tile import THREADS


def forward_by_row(phi_q, phi_k, v, state):
    """Algorithm 1, forward: ``out (..., N, M)`` and the state ``(..., C, M)`` after the last row.

    Parameters
    ----------
    phi_q, phi_k, v : array, ``(..., N, C)``, ``(..., N, C)``, ``(..., N, M)``
    state : array ``(..., C, M)`` or None
    """
    call = Call(v.shape[:-2], phi_q=phi_q, phi_k=phi_k, v=v, state=state)
    q, k, v = call.flat(phi_q), call.flat(phi_k), call.flat(v)
    s, out = copy_or_zeros(call, state, k, v), call.empty(v.shape[1:], dtype_of(v))
    _loop(call, q, k, v, s, out, transposed=False, backwards=False)  # (1), (2)
    return call.results(out, s)


def backward_by_row(d_out, d_state, phi_q, phi_k, v, state):
    """Algorithm 1, backward: ``d_phi_q``, ``d_phi_k``, ``d_v`` and ``d_state``, shaped like their inputs."""
    call = Call(v.shape[:-2], d_out=d_out, d_state=d_state, phi_q=phi_q, phi_k=phi_k, v=v, state=state)
    g, q, k, v = call.flat(d_out), call.flat(phi_q), call.flat(phi_k), call.flat(v)
    d_q, d_k, d_v = (call.empty(x.shape[1:], dtype_of(v)) for x in (q, k, v))
    _loop(call, g, v, k, copy_or_zeros(call, state, k, v), d_q, transposed=True, backwards=False)  # (4)
    _loop(call, v, g, q, copy_or_zeros(call, d_state, k, v), d_k, transposed=True, backwards=True)  # (5)
    a = copy_or_zeros(call, d_state, k, v)
    _loop(call, k, q, g, a, d_v, transposed=False, backwards=True)  # (6)
    return call.results(d_q, d_k, d_v, a)  # (9)


def _loop(call, a, b, u, s, out, *, transposed, backwards):
    """``S += b_i u_i^T``, ``out_i = S^T a_i`` for each row; ``transposed``: ``s`` is ``S^T``. ``s`` is written to."""
    blocks = -(-u.shape[2] // THREADS)
    call.launch(columns_of_a_head, (call.heads * blocks,), (THREADS,), a, b, u, s, out, transposed, backwards)


@kernel
def columns_of_a_head(a, b, u, s, out, transposed, backwards):
    """A thread per column ``m`` of ``S``. Grid: heads * blocks of ``THREADS`` columns."""
    total = cuda.local.array(1, a.dtype)
    n, width, columns = a.shape[1], a.shape[2], u.shape[2]
    blocks = (columns + THREADS - 1) // THREADS
    head, m = cuda.blockIdx.x // blocks, cuda.blockIdx.x % blocks * THREADS + cuda.threadIdx.x
    if m < columns:
        for turn in range(n):
            i = n - 1 - turn if backwards else turn
            total[0] = 0
            for c in range(width):
                row, column = (m, c) if transposed else (c, m)
                s[head, row, column] += b[head, i, c] * u[head, i, m]  # (1)
                total[0] += a[head, i, c] * s[head, row, column]  # (2)
            out[head, i, m] = total[0]
