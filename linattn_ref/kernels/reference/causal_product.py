"""The causal product of linear attention, in NumPy: a sum over ``j <= i`` without an ``(N, N)`` matrix.

    S_i = g_i S_{i-1} + w_i phi(k_i) v_i^T                   (1)  (C, M)
    out_i = phi(q_i)^T S_i                                   (2)  (M,)

with ``S_0 = state``, and ``g = w = 1`` in plain linear attention. Three forms of it:

``forward_by_row``, ``backward_by_row``, in ``causal_product_plain.py``
    Algorithm 1 as the paper prints it, one position after the other.
``forward``, ``backward``
    The same numbers a chunk at a time: matrix products in place of rank-1 updates; gates ``g`` and weights ``w``.
``normalised_forward``, ``normalised_backward``; ``step``, in ``causal_step.py``
    Numerator and denominator of linear attention at once: the same product with a column of ones beside ``V``.

The gradient, by hand
---------------------
Let ``G_i`` be the gradient of a loss with respect to ``out_i`` and ``A_i`` that with respect to ``S_i``. (2) adds
``phi(q_i) G_i^T`` to ``A_i``, and (1) hands ``g_i A_i`` down to ``S_{i-1}``:

    A_i = phi(q_i) G_i^T + g_{i+1} A_{i+1}                   (3)
    d_phi_q_i = S_i G_i                                      (4)  equation 13 of the paper
    d_phi_k_i = w_i A_i v_i                                  (5)  equation 14
    d_v_i = w_i A_i^T phi(k_i)                               (6)  equation 15
    d_w_i = phi(k_i)^T A_i v_i                               (7)
    d_g_i = <A_i, S_{i-1}>                                   (8)
    d_state = g_1 A_1                                        (9)

``S`` runs forward in (4) and ``A`` backward in (5)-(7), so neither is kept for every position: ``O(C M)`` memory a
head beyond the inputs and outputs, whatever ``N`` is. Only (8) needs both at one position. Rewinding ``S_{i-1}`` out of
``S_i`` would subtract nearly equal numbers and divide by gates; instead ``S`` is noted at the start of every chunk, in
rows of an output that are not written yet, and taken from there when the backward loop arrives.

A chunk
-------
For the rows of one chunk let ``ratio_ij = g_{j+1} ... g_i`` for ``j <= i``, else 0, made by multiplication alone;
``S`` is the state before the chunk, ``u_j = w_j v_j``, and ``c_i`` the product of the chunk's gates up to ``i``. Then
(1) and (2) are

    out = (phi_q phi_k^T * ratio) u + c * (phi_q S)          (10)
    S' = c_T S + phi_k^T (ratio_T * u)                       (11)

and (3)-(9) are the transposes of these two.

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", section 3.3.1 and Algorithm 1.
Peng et al. (2021), "Random feature attention", section 3 (the gate).
Yang et al. (2024), "Gated linear attention transformers with hardware-efficient training", section 4.2 (chunks).
"""

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.kernels.reference.buffers import empty, into
from linattn_ref.kernels.reference.causal_product_plain import backward_by_row, copy_or_zeros, forward_by_row
from linattn_ref.kernels.reference.causal_step import step
from linattn_ref.kernels.reference.division import divide
from linattn_ref.kernels.reference.seen_product import product_of_seen

__all__ = [
    "CHUNK",
    "Decay",
    "backward",
    "backward_by_row",
    "forward",
    "forward_by_row",
    "normalised_backward",
    "normalised_forward",
    "step",
]

CHUNK = 64  # rows: small enough that the (CHUNK, CHUNK) scores cost no more than the state, large enough for BLAS


# --- By chunks ------------------------------------------------------------------------------------------------------


def forward(phi_q, phi_k, v, gate, weight, state, *, out=None):
    """The causal product, equations (1) and (2).

    Parameters
    ----------
    phi_q, phi_k, v : ndarray, ``(..., N, C)``, ``(..., N, C)``, ``(..., N, M)``
    gate, weight : ndarray ``(..., N)`` or None
        ``g`` and ``w``; None is 1 everywhere.
    state : ndarray ``(..., C, M)`` or None
        ``S_0``; None is 0. Not written to.
    out : ndarray ``(..., N, M)``, optional
        To be written to.

    Returns
    -------
    out : ndarray ``(..., N, M)``
    state : ndarray ``(..., C, M)``
        ``S_N``.
    """
    out = empty(out, v)
    s = copy_or_zeros(state, phi_k, v)
    for rows in _chunks(v.shape[-2], CHUNK):
        q, k, u, decay = phi_q[..., rows, :], phi_k[..., rows, :], _weighted(v, weight, rows), _decay(gate, rows)
        scores = np.tril(q @ k.swapaxes(-1, -2)) * decay.ratio  # (..., T, T)
        out[..., rows, :] = product_of_seen(scores, u) + decay.since_start * (q @ s)  # (10)  (..., T, M)
        s = _advance(s, k, u, decay)
    return out, s


def backward(d_out, d_state, phi_q, phi_k, v, gate, weight, state, *, gradients=(None, None, None)):
    """Gradients of :func:`forward`, equations (3)-(9).

    Parameters
    ----------
    d_out : ndarray ``(..., N, M)``
    d_state : ndarray ``(..., C, M)`` or None
        Gradient of the state that :func:`forward` returned; None is 0.
    phi_q, phi_k, v, gate, weight, state
        What :func:`forward` was given.
    gradients : tuple of three ndarray or None
        To be written to with ``d_phi_q``, ``d_phi_k`` and ``d_v``.

    Returns
    -------
    d_phi_q, d_phi_k, d_v, d_gate, d_weight, d_state : ndarray
        Shaped like their inputs; ``d_gate`` and ``d_weight`` are None where the input is, ``d_state`` never is.
    """
    inputs = zip(gradients, (phi_q, phi_k, v), strict=True)
    d_phi_q, d_phi_k, d_v = (empty(*each, "gradients") for each in inputs)
    d_gate, d_weight = (None if x is None else np.empty(x.shape, x.dtype) for x in (gate, weight))
    chunks = _chunks(v.shape[-2], CHUNK if gate is None else max(CHUNK, min(d_phi_k.shape[-1], d_v.shape[-1])))

    s = copy_or_zeros(state, phi_k, v)
    for rows in chunks:
        g, k, u, decay = d_out[..., rows, :], phi_k[..., rows, :], _weighted(v, weight, rows), _decay(gate, rows)
        d_scores = np.tril(g @ u.swapaxes(-1, -2)) * decay.ratio  # (..., T, T)
        d_phi_q[..., rows, :] = product_of_seen(d_scores, k) + decay.since_start * (g @ s.swapaxes(-1, -2))  # (4)
        if rows is not chunks[-1]:
            if d_gate is not None:
                _unwritten(d_phi_k, d_v, rows)[...] = s
            s = _advance(s, k, u, decay)

    a = copy_or_zeros(d_state, phi_k, v)
    for rows in reversed(chunks):
        q, k, u, decay = phi_q[..., rows, :], phi_k[..., rows, :], _weighted(v, weight, rows), _decay(gate, rows)
        g = d_out[..., rows, :]
        if d_gate is not None:
            if rows is not chunks[-1]:
                s = _unwritten(d_phi_k, d_v, rows).copy()
            d_gate[..., rows] = _gate_gradient(g, q, k, u, decay, s, a)  # (8)
        d_scores = np.tril(g @ u.swapaxes(-1, -2)) * decay.ratio  # (..., T, T)
        scores = np.tril(q @ k.swapaxes(-1, -2)) * decay.ratio  # (..., T, T)
        d_phi_k[..., rows, :] = d_scores.swapaxes(-1, -2) @ q + decay.until_end * (u @ a.swapaxes(-1, -2))  # (5)
        d_u = scores.swapaxes(-1, -2) @ g + decay.until_end * (k @ a)  # (..., T, M)
        d_v[..., rows, :] = d_u if weight is None else weight[..., rows, None] * d_u  # (6)
        if d_weight is not None:
            d_weight[..., rows] = (v[..., rows, :] * d_u).sum(axis=-1)  # (7)
        a = decay.whole * a + (decay.since_start * q).swapaxes(-1, -2) @ g  # (3)
    return d_phi_q, d_phi_k, d_v, d_gate, d_weight, a  # (9)


class Decay(NamedTuple):
    """Products of the gates within one chunk of ``T`` rows."""

    ratio: Any  # (..., T, T), g_{j+1} ... g_i for j <= i, else 0
    since_start: Any  # (..., T, 1), c_i = g_1 ... g_i
    until_end: Any  # (..., T, 1), g_{j+1} ... g_T
    whole: Any  # (..., 1, 1), c_T = g_1 ... g_T


def _decay(gate, rows):
    """Multiplication only: a gate of 0 or close to 1 is as good as any other."""
    if gate is None:
        return Decay(1, 1, 1, 1)
    below = np.tri(rows.stop - rows.start, k=-1, dtype=np.bool_)
    gates = np.where(below, gate[..., rows, None], gate.dtype.type(1))  # g_i for j < i, else 1
    ratio = np.tril(np.cumprod(gates, axis=-2))  # (..., T, T)
    since_start = np.cumprod(gate[..., rows], axis=-1)[..., None]  # (..., T, 1)
    return Decay(ratio, since_start, ratio[..., -1, :, None], since_start[..., -1:, :])


def _advance(s, k, u, decay):
    """The state after a chunk, from the state before it."""
    return decay.whole * s + k.swapaxes(-1, -2) @ (decay.until_end * u)  # (11)


def _gate_gradient(g, q, k, u, decay, s, a):
    """Equation (8) for the rows of a chunk, given ``S`` before it and ``A`` after it.

    ``A_i`` is a sum over later rows ``l >= i`` and the end, ``S_{i-1}`` one over earlier rows ``j < i`` and the start,
    each decayed: ``later_il`` and ``earlier_ij``. So ``<A_i, S_{i-1}> = sum_lj later_il X_lj earlier_ij``, where
    ``X_lj`` is the inner product of two undecayed terms, ``phi_q_l G_l^T`` (or ``A``) and ``phi_k_j u_j^T`` (or ``S``).
    """
    row_row = (q @ k.swapaxes(-1, -2)) * (g @ u.swapaxes(-1, -2))  # (..., T, T)
    row_start = ((q @ s) * g).sum(axis=-1, keepdims=True)  # (..., T, 1)
    end_row = ((k @ a) * u).sum(axis=-1)[..., None, :]  # (..., 1, T)
    end_start = (a * s).sum(axis=(-2, -1))[..., None, None]  # (..., 1, 1)
    x = np.block([[row_row, row_start], [end_row, end_start]])  # (..., T + 1, T + 1)
    later = np.concatenate([decay.ratio.swapaxes(-1, -2), decay.until_end], axis=-1)  # (..., T, T + 1)
    earlier = np.zeros(later.shape, later.dtype)  # (..., T, T + 1)
    earlier[..., 1:, :] = np.concatenate([decay.ratio, decay.since_start], axis=-1)[..., :-1, :]
    earlier[..., 0, -1] = 1
    return ((later @ x) * earlier).sum(axis=-1)  # (..., T)


def _unwritten(d_phi_k, d_v, rows):
    """A view shaped like a state, ``(..., C, M)``, of output rows that the backward loop has not reached."""
    width, value_width = d_phi_k.shape[-1], d_v.shape[-1]
    if value_width <= width:
        return d_phi_k[..., rows.start : rows.start + value_width, :].swapaxes(-1, -2)
    return d_v[..., rows.start : rows.start + width, :]


def _chunks(n, length):
    return [slice(start, min(start + length, n)) for start in range(0, n, length)]


def _weighted(v, weight, rows):
    """``u_j = w_j v_j``, ``(..., T, M)``."""
    return v[..., rows, :] if weight is None else weight[..., rows, None] * v[..., rows, :]


# --- With the denominator -------------------------------------------------------------------------------------------


def normalised_forward(phi_q, phi_k, v, gate, weight, s, z, eps, *, out=None):
    """Causal linear attention: ``out_i = phi(q_i)^T S_i / (phi(q_i)^T Z_i + eps)``, ``Z`` as ``S`` with ``v = 1``.

    For clarity this makes one copy of ``V``, to put the column of ones beside it.

    Parameters
    ----------
    phi_q, phi_k, v, gate, weight
        As in :func:`forward`.
    s, z : ndarray ``(..., C, M)``, ``(..., C)``, or None and None
        ``S_0`` and ``Z_0``. Not written to.
    eps : float
    out : ndarray ``(..., N, M)``, optional
        To be written to.

    Returns
    -------
    out : ndarray ``(..., N, M)``
        0 where the denominator is 0, which is a query that has seen nothing.
    denominator : ndarray ``(..., N)``
        ``eps`` included.
    s, z : ndarray ``(..., C, M)``, ``(..., C)``
        ``S_N`` and ``Z_N``.
    """
    both, state = forward(phi_q, phi_k, _beside(v, _ones(v)), gate, weight, None if s is None else _beside(s, z))
    numerator, denominator = both[..., :-1], both[..., -1] + eps  # (..., N, M), (..., N)
    s, z = state[..., :-1].copy(), state[..., -1].copy()  # without gaps, for whoever continues from them
    return into(out, divide(numerator, denominator)), denominator, s, z


def normalised_backward(
    d_out, d_s, d_z, phi_q, phi_k, v, gate, weight, s, z, out, denominator, *, gradients=(None, None, None)
):
    """Gradients of :func:`normalised_forward`.

    From ``out = numerator / denominator`` come ``d_numerator = d_out / denominator`` and
    ``d_denominator = -d_numerator . out``; the rest is :func:`backward` with the column of ones, beside copies again.

    Parameters
    ----------
    d_s, d_z : ndarray ``(..., C, M)``, ``(..., C)``, or None and None
        Gradients of the state that :func:`normalised_forward` returned.
    phi_q, phi_k, v, gate, weight, s, z, out, denominator
        What it was given, and what it returned.
    gradients : tuple of three ndarray or None
        To be written to with ``d_phi_q``, ``d_phi_k`` and ``d_v``.

    Returns
    -------
    d_phi_q, d_phi_k, d_v, d_gate, d_weight, d_s, d_z : ndarray
        As :func:`backward`.
    """
    d_numerator = divide(d_out, denominator)  # (..., N, M)
    d_denominator = -(d_numerator * out).sum(axis=-1)  # (..., N)
    d_phi_q, d_phi_k, d_v, d_gate, d_weight, d_state = backward(
        _beside(d_numerator, d_denominator),
        None if d_s is None else _beside(d_s, d_z),
        phi_q,
        phi_k,
        _beside(v, _ones(v)),
        gate,
        weight,
        None if s is None else _beside(s, z),
        gradients=(*gradients[:2], None),
    )
    d_v = into(gradients[2], d_v[..., :-1], "gradients")
    return d_phi_q, d_phi_k, d_v, d_gate, d_weight, d_state[..., :-1], d_state[..., -1]


def _beside(x, column):
    """``[x, column]``, ``(..., W + 1)``."""
    return np.concatenate([x, column[..., None]], axis=-1)


def _ones(v):
    return np.ones(v.shape[:-1], v.dtype)
