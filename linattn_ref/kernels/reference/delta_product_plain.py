"""The product of states that fade and correct themselves, row by row: equations (1)-(12) as they stand.

The numbers are those of `delta_product`, and so are arguments and results.
"""

import numpy as np

__all__ = ["backward_by_row", "forward_by_row", "step"]

CHUNK = 16  # rows: ratios are (CHUNK, CHUNK, C) numbers, not many more than the state


def forward_by_row(q, k, v, erase, log_gate, state):
    """Equations (1)-(4) as they stand; arguments and results are those of `delta_product.forward`."""
    s, gate = copy_or_zeros(state, k, v), gate_of(by_channel(log_gate, v), v)
    out, u = np.empty(v.shape, v.dtype), v.copy()
    for i in range(v.shape[-2]):
        s *= gate[..., i, :, None]  # (1)  (..., C, M)
        if erase is not None:
            u[..., i, :] -= read(s, erase[..., i, :])  # (2)  (..., M)
        s += outer(k[..., i, :], u[..., i, :])  # (3)
        out[..., i, :] = read(s, q[..., i, :])  # (4)  (..., M)
    return out, s, u


def backward_by_row(d_out, d_state, q, k, v, erase, log_gate, state, u):
    """Equations (5)-(12) as they stand; arguments and results are those of `delta_product.backward`."""
    d_q, d_k, d_v = (np.empty(x.shape, x.dtype) for x in (q, k, v))
    d_erase = None if erase is None else np.empty(erase.shape, erase.dtype)
    gate = gate_of(by_channel(log_gate, v), v)
    a = copy_or_zeros(d_state, k, v)
    for i in reversed(range(v.shape[-2])):
        a += outer(q[..., i, :], d_out[..., i, :])  # (5)  (..., C, M)
        d_v[..., i, :] = read(a, k[..., i, :])  # (6)  (..., M)
        d_k[..., i, :] = answer(a, u[..., i, :])  # (8)  (..., C)
        if erase is not None:
            a -= outer(erase[..., i, :], d_v[..., i, :])  # (7)
        a *= gate[..., i, :, None]  # of (5) for the row before
    s = copy_or_zeros(state, k, v)
    for i in range(v.shape[-2]):
        s *= gate[..., i, :, None]  # (1)
        if erase is not None:
            d_erase[..., i, :] = -answer(s, d_v[..., i, :])  # (9)  (..., C)
        s += outer(k[..., i, :], u[..., i, :])  # (3)
        d_q[..., i, :] = answer(s, d_out[..., i, :])  # (10)  (..., C)
    d_log_gate = gate_gradient(q, k, erase, log_gate, d_q, d_k, d_erase, d_state, s)  # (12)
    return d_q, d_k, d_v, d_erase, d_log_gate, a


def step(q, k, v, erase, log_gate, s):
    """One row of `delta_product.forward`: ``(..., C)``, ``(..., C)``, ``(..., M)`` -> ``out (..., M)``.

    ``erase (..., C)`` and ``log_gate (...)`` or ``(..., C)`` may be None; ``s (..., C, M)`` is brought up to date in
    place.
    """
    if log_gate is not None:
        s *= np.exp(log_gate).reshape(*v.shape[:-1], -1, 1)  # (1)
    u = v if erase is None else v - read(s, erase)  # (2)  (..., M)
    s += outer(k, u)  # (3)
    return read(s, q)  # (4)


# --- What the chunks need too ---------------------------------------------------------------------------------------


def outer(x, y):
    """``x y^T``, ``(..., C, M)``."""
    return x[..., :, None] * y[..., None, :]


def read(s, x):
    """``S^T x``, ``(..., M)``."""
    return (x[..., None, :] @ s)[..., 0, :]


def answer(s, y):
    """``S y``, ``(..., C)``."""
    return (s @ y[..., :, None])[..., 0]


def by_channel(log_gate, v):
    """``(..., N, C)``, or a view ``(..., N, 1)`` of one that serves all channels."""
    return log_gate[..., None] if log_gate is not None and log_gate.ndim < v.ndim else log_gate


def gate_of(log_gate, rows):
    """``g`` of some rows, shaped as :func:`by_channel` gives it; 1 without a gate."""
    return np.ones((*rows.shape[:-1], 1), rows.dtype) if log_gate is None else np.exp(log_gate)


def gate_gradient(q, k, erase, log_gate, d_q, d_k, d_erase, d_state, s):
    """Equation (12), with ``S_N`` in ``s``; where the gate is 0, and rounding would leave a little, exactly 0."""
    if log_gate is None:
        return None
    d_log_gate = np.empty(log_gate.shape, log_gate.dtype)
    target, log_gate = by_channel(d_log_gate, q), by_channel(log_gate, q)  # (..., N, C or 1)
    later = np.zeros_like(q[..., :1, :]) if d_state is None else (d_state * s).sum(axis=-1)[..., None, :]
    for rows in chunks_of(q.shape[-2], backwards=True):
        own = q[..., rows, :] * d_q[..., rows, :] - k[..., rows, :] * d_k[..., rows, :]  # (..., T, C)
        if erase is not None:
            own += erase[..., rows, :] * d_erase[..., rows, :]
        own[..., -1:, :] += later
        sums = np.cumsum(own[..., ::-1, :], axis=-2)[..., ::-1, :]
        later = sums[..., :1, :]  # (..., 1, C), for the row before
        if target.shape[-1] == 1:
            sums = sums.sum(axis=-1, keepdims=True)  # (..., T, 1)
        target[..., rows, :] = np.where(np.isneginf(log_gate[..., rows, :]), q.dtype.type(0), sums)
    return d_log_gate


def chunks_of(n, *, backwards=False):
    """The rows of one chunk after the other."""
    starts = range(0, n, CHUNK)
    return (slice(i, i + CHUNK) for i in (reversed(starts) if backwards else starts))


def copy_or_zeros(state, k, v):
    if state is not None:
        return state.copy()
    return np.zeros((*v.shape[:-2], k.shape[-1], v.shape[-1]), v.dtype)
