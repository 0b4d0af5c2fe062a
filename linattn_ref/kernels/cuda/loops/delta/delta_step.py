"""One row of the delta product on a GPU: the step of the recurrent form, a block per head."""

import math

from linattn_ref.kernels.cuda.loops.arrays import Call, dtype_of
from linattn_ref.kernels.cuda.loops.device import cuda, kernel
from linattn_ref.kernels.cuda.loops.tile import THREADS


def step(q, k, v, erase, log_gate, s):
    """One row of ``forward``: ``(..., C)``, ``(..., C)``, ``(..., M)`` -> ``out (..., M)``.

    ``erase (..., C)`` and ``log_gate (...)`` or ``(..., C)`` may be None; ``s (..., C, M)`` is brought up to date in
    place.
    """
    call = Call(v.shape[:-1], q=q, k=k, v=v, erase=erase, log_gate=log_gate, s=s)
    gated, erases, channels = log_gate is not None, erase is not None, log_gate is not None and log_gate.ndim == k.ndim
    q, k, v, state = call.flat(q, axes=1), call.flat(k, axes=1), call.flat(v, axes=1), call.state(s)
    log_gate = (
        call.flat(log_gate, axes=int(channels)).reshape((call.heads, k.shape[1] if channels else 1)) if gated else q
    )
    rows = q, k, v, call.flat(erase, axes=1) if erases else q, log_gate
    out = call.empty(v.shape[1:], dtype_of(v))
    call.launch(delta_step_of_a_head, (call.heads,), (THREADS,), *rows, state, out, gated, erases)
    call.write_back((state,), (s,))
    return call.results(out)[0]


@kernel
def delta_step_of_a_head(q, k, v, e, log_gate, s, out, gated, erases):
    """A thread per column of the state. Grid: heads."""
    u = cuda.local.array(1, v.dtype)
    total = cuda.local.array(1, v.dtype)
    head = cuda.blockIdx.x
    for m in range(cuda.threadIdx.x, out.shape[1], THREADS):
        u[0] = v[head, m]
        for c in range(k.shape[1]):
            if gated:
                s[head, c, m] *= math.exp(log_gate[head, min(c, log_gate.shape[1] - 1)])  # (1)
            if erases:
                u[0] -= s[head, c, m] * e[head, c]  # (2)
        total[0] = 0
        for c in range(k.shape[1]):
            s[head, c, m] += k[head, c] * u[0]  # (3)
            total[0] += s[head, c, m] * q[head, c]  # (4)
        out[head, m] = total[0]
