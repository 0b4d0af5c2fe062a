"""Algorithm 1 in a few lines of Numba: the paper's loop, and what a compiler makes of it unaided.

The whole kernel is :func:`scan_plain`. Its inner loop runs along the rows of ``S``, so that the compiler can use
vectors without changing the order of any sum. The gradients are the same loop, with the arrays in other places.
`causal_scan` is the loop with the vectors spelled out; ``linattn-ref bench linear`` times both.
"""

import numpy as np

from linattn_ref.kernels.jit.loops.cache import kernel
from linattn_ref.kernels.jit.loops.rows import as_heads


@kernel(a="heads N C", b="heads N C", u="heads N M", out="heads N M", s="heads C M")
def scan_plain(h, a, b, u, out, s, step):
    """``S += b_i u_i^T``, ``out_i = S^T a_i``, for head ``h``; ``step`` 1 from the first row on, -1 from the last.

    ``a, b (heads, N, C)``, ``u, out (heads, N, M)``; ``s (heads, C, M)`` is brought up to date.
    """
    for t in range(a.shape[1]):
        i = t if step > 0 else a.shape[1] - 1 - t
        out[h, i] = 0
        for c in range(a.shape[2]):
            for m in range(u.shape[2]):
                s[h, c, m] += b[h, i, c] * u[h, i, m]
                out[h, i, m] += a[h, i, c] * s[h, c, m]


def forward_by_row(phi_q, phi_k, v, state):
    """Algorithm 1, forward: ``out (..., N, M)`` and the state ``(..., C, M)`` after the last row.

    Parameters
    ----------
    phi_q, phi_k, v : ndarray, ``(..., N, C)``, ``(..., N, C)``, ``(..., N, M)``
    state : ndarray ``(..., C, M)`` or None
    """
    s = _state(state, phi_k, v)
    return _scan(phi_q, phi_k, v, s, 1), s


def backward_by_row(d_out, d_state, phi_q, phi_k, v, state):
    """Algorithm 1, backward: ``d_phi_q``, ``d_phi_k``, ``d_v`` and ``d_state``, shaped like their inputs."""
    s, a = _state(state, phi_k, v), _state(d_state, phi_k, v)
    d_phi_q = _scan(d_out, v, phi_k, s.swapaxes(-1, -2).copy(), 1)  # the paper's 13
    d_phi_k = _scan(v, d_out, phi_q, a.swapaxes(-1, -2).copy(), -1)  # 14
    d_v = _scan(phi_k, phi_q, d_out, a, -1)  # 15
    return d_phi_q, d_phi_k, d_v, a


def _scan(a, b, u, s, step):
    out = np.empty(u.shape, u.dtype)
    heads = [as_heads(x) for x in (a, b, u, out, s)]
    scan_plain(len(heads[0]), *heads, step)
    return out


def _state(state, phi_k, v):
    if state is not None:
        return state.copy()
    return np.zeros((*v.shape[:-2], phi_k.shape[-1], v.shape[-1]), v.dtype)
