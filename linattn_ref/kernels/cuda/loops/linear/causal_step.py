"""One row of the causal product on a GPU: the step of the recurrent form, a block per head."""

import math

from linattn_ref.kernels.cuda.loops.arrays import Call, dtype_of
from linattn_ref.kernels.cuda.loops.device import cuda, inlined, kernel
from linattn_ref.kernels.cuda.loops.tile import THREADS


def step(phi_q, phi_k, v, s, z, eps, *, elu_plus_one=False):
    """One row of ``normalised_forward``: ``(..., C)``, ``(..., C)``, ``(..., M)`` -> ``out (..., M)``.

    ``s (..., C, M)`` and ``z (..., C)`` are brought up to date in place. With ``elu_plus_one`` the first two are ``q``
    and ``k``, and ``phi`` is that map.
    """
    call = Call(v.shape[:-1], phi_q=phi_q, phi_k=phi_k, v=v, s=s, z=z)
    rows = call.flat(phi_q, axes=1), call.flat(phi_k, axes=1), call.flat(v, axes=1)
    states = call.state(s), call.state(z, axes=1)
    out = call.empty(v.shape[-1:], dtype_of(v))
    call.launch(step_of_a_head, (call.heads,), (THREADS,), *rows, *states, dtype_of(v).type(eps), out, elu_plus_one)
    call.write_back(states, (s, z))
    return call.results(out)[0]


@inlined
def feature(phi, x, elu_plus_one):
    """``phi(x)`` in ``phi[0]``; without the map ``x``, which is a feature already."""
    phi[0] = x
    if elu_plus_one:
        if x > 0:
            phi[0] += 1
        else:
            phi[0] = math.exp(x)


@kernel
def step_of_a_head(q, k, v, s, z, eps, out, elu_plus_one):
    """Grid: heads."""
    phi_q = cuda.local.array(1, v.dtype)
    phi_k = cuda.local.array(1, v.dtype)
    numerator = cuda.local.array(1, v.dtype)
    denominator = cuda.local.array(1, v.dtype)
    head = cuda.blockIdx.x
    for c in range(cuda.threadIdx.x, z.shape[1], THREADS):
        feature(phi_k, k[head, c], elu_plus_one)
        z[head, c] += phi_k[0]
    cuda.syncthreads()
    denominator[0] = eps
    for c in range(z.shape[1]):  # by every thread: they read the same numbers at the same time
        feature(phi_q, q[head, c], elu_plus_one)
        denominator[0] += phi_q[0] * z[head, c]
    for m in range(cuda.threadIdx.x, out.shape[1], THREADS):
        numerator[0] = 0
        for c in range(z.shape[1]):
            feature(phi_q, q[head, c], elu_plus_one)
            feature(phi_k, k[head, c], elu_plus_one)
            s[head, c, m] += phi_k[0] * v[head, m]  # (1)
            numerator[0] += phi_q[0] * s[head, c, m]  # (2)
        out[head, m] = 0
        if denominator[0] != 0:
            out[head, m] = numerator[0] / denominator[0]
