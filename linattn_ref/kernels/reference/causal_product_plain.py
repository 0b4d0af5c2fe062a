"""Algorithm 1 of linear attention as the paper prints it, one position after the other.

Without gates and weights; the numbers of the equations are those of `causal_product`.

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", section 3.3.1 and Algorithm 1.
"""

import numpy as np

__all__ = ["backward_by_row", "forward_by_row"]


def forward_by_row(phi_q, phi_k, v, state):
    """Algorithm 1, forward: ``out (..., N, M)`` and the state ``(..., C, M)`` after the last row.

    Parameters
    ----------
    phi_q, phi_k, v : ndarray, ``(..., N, C)``, ``(..., N, C)``, ``(..., N, M)``
    state : ndarray ``(..., C, M)`` or None
    """
    s = copy_or_zeros(state, phi_k, v)
    out = np.empty(v.shape, v.dtype)
    for i in range(v.shape[-2]):
        s += phi_k[..., i, :, None] * v[..., i, None, :]  # (1)  (..., C, M)
        out[..., i, :] = (phi_q[..., i, None, :] @ s)[..., 0, :]  # (2)  (..., M)
    return out, s


def backward_by_row(d_out, d_state, phi_q, phi_k, v, state):
    """Algorithm 1, backward: ``d_phi_q``, ``d_phi_k``, ``d_v`` and ``d_state``, shaped like their inputs."""
    d_phi_q, d_phi_k, d_v = (np.empty(x.shape, x.dtype) for x in (phi_q, phi_k, v))
    s = copy_or_zeros(state, phi_k, v)
    for i in range(v.shape[-2]):
        s += phi_k[..., i, :, None] * v[..., i, None, :]  # (1)
        d_phi_q[..., i, :] = (s @ d_out[..., i, :, None])[..., 0]  # (4), the paper's 13
    a = copy_or_zeros(d_state, phi_k, v)
    for i in reversed(range(v.shape[-2])):
        a += phi_q[..., i, :, None] * d_out[..., i, None, :]  # (3)
        d_v[..., i, :] = (phi_k[..., i, None, :] @ a)[..., 0, :]  # (6), the paper's 15
        d_phi_k[..., i, :] = (a @ v[..., i, :, None])[..., 0]  # (5), the paper's 14
    return d_phi_q, d_phi_k, d_v, a  # (9)


def copy_or_zeros(state, phi_k, v):
    """The state ``(..., C, M)`` to start from, to be written to."""
    if state is not None:
        return state.copy()
    return np.zeros((*v.shape[:-2], phi_k.shape[-1], v.shape[-1]), v.dtype)
