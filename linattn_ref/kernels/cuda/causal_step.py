"""One row of the causal product on a GPU: the step of the recurrent form, a block a head."""

from linattn_ref.kernels.cuda.arrays import Call, dtype_of
from linattn_ref.kernels.cuda.device import cuda, kernel
from linattn_ref.kernels.cuda.tile import THREADS


def step(phi_q, phi_k, v, s, z, eps):
    """One row of ``normalised_forward``: ``(..., C)``, ``(..., C)``, ``(..., M)`` -> ``out (..., M)``.

    ``s (..., C, M)`` and ``z (..., C)`` are brought up to date in place.
    """
    call = Call(v.shape[:-1], phi_q=phi_q, phi_k=phi_k, v=v, s=s, z=z)
    rows = call.flat(phi_q, axes=1), call.flat(phi_k, axes=1), call.flat(v, axes=1)
    states = call.flat(s), call.flat(z, axes=1)
    out = call.empty(v.shape[-1:], dtype_of(v))
    call.launch(step_of_a_head, (call.heads,), (THREADS,), *rows, *states, dtype_of(v).type(eps), out)
    call.write_back(states, (s, z))
    return call.results(out)[0]


@kernel
def step_of_a_head(phi_q, phi_k, v, s, z, eps, out):
    """Grid: heads."""
    numerator = cuda.local.array(1, v.dtype)
    head = cuda.blockIdx.x
    for c in range(cuda.threadIdx.x, z.shape[1], THREADS):
        z[head, c] += phi_k[head, c]
    cuda.syncthreads()
    denominator = eps
    for c in range(z.shape[1]):  # by every thread: they read the same numbers at the same time
        denominator += phi_q[head, c] * z[head, c]
    for m in range(cuda.threadIdx.x, out.shape[1], THREADS):
        numerator[0] = 0
        for c in range(z.shape[1]):
            s[head, c, m] += phi_k[head, c] * v[head, m]  # (1)
            numerator[0] += phi_q[head, c] * s[head, c, m]  # (2)
        out[head, m] = 0
        if denominator != 0:
            out[head, m] = numerator[0] / denominator
