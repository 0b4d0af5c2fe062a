"""The product of states that fade and correct themselves, row by row: equations (1)-(11) as they stand.

The numbers are those of `delta_product`, and so are arguments and results. Equations (9)-(11) need the states, the last
one first. No state can be computed from the next, for that would divide by gates, and all of them would be ``N C M``
numbers. So every ``C``-th is noted, together as many numbers as ``v`` has, and the others are made again, ``C`` at a
time.
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
    """Equations (5)-(11) as they stand; arguments and results are those of `delta_product.backward`."""
    d_q, d_k, d_v = (np.empty(x.shape, x.dtype) for x in (q, k, v))
    d_erase, d_log_gate = (None if x is None else np.empty(x.shape, x.dtype) for x in (erase, log_gate))
    log_gate, target = by_channel(log_gate, v), by_channel(d_log_gate, v)
    gate = gate_of(log_gate, v)
    a = copy_or_zeros(d_state, k, v)
    for i, faded in _faded_states(gate, k, u, state):  # the last first
        a += outer(q[..., i, :], d_out[..., i, :])  # (5)  (..., C, M)
        d_v[..., i, :] = read(a, k[..., i, :])  # (6)  (..., M)
        d_k[..., i, :] = answer(a, u[..., i, :])  # (8)  (..., C)
        if erase is not None:
            a -= outer(erase[..., i, :], d_v[..., i, :])  # (7)
            d_erase[..., i, :] = -answer(faded, d_v[..., i, :])  # (9)  (..., C)
        d_q[..., i, :] = answer(faded + outer(k[..., i, :], u[..., i, :]), d_out[..., i, :])  # (10), by (3)  (..., C)
        if target is not None:
            target[..., i, :] = sum_to_gates((a * faded).sum(axis=-1), target)  # (11)
        a *= gate[..., i, :, None]  # of (5) for the row before
    return d_q, d_k, d_v, d_erase, d_log_gate, a


def _faded_states(gate, k, u, state):
    """Every ``i`` and ``S~_i``, the last first, as if all had been kept."""
    (n, c), s, noted = k.shape[-2:], copy_or_zeros(state, k, u), []
    for i in range(n):
        if i % c == 0:
            noted.append(s)
        s = gate[..., i, :, None] * s + outer(k[..., i, :], u[..., i, :])  # (1), (3)
    for first, s in reversed([*zip(range(0, n, c), noted, strict=True)]):
        few = []
        for i in range(first, min(first + c, n)):
            few.append((i, gate[..., i, :, None] * s))  # (1)
            s = few[-1][1] + outer(k[..., i, :], u[..., i, :])  # (3)
        yield from reversed(few)


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


def sum_to_gates(x, gates):
    """``x (..., C)``, summed up if ``gates`` has one for all channels, ``(..., 1)``."""
    return x.sum(axis=-1, keepdims=True) if gates.shape[-1] == 1 else x


def chunks_of(n, *, backwards=False):
    """The rows of one chunk after the other."""
    starts = range(0, n, CHUNK)
    return (slice(i, i + CHUNK) for i in (reversed(starts) if backwards else starts))


def copy_or_zeros(state, k, v):
    if state is not None:
        return state.copy()
    return np.zeros((*v.shape[:-2], k.shape[-1], v.shape[-1]), v.dtype)
