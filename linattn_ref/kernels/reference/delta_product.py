"""A causal product whose state fades and corrects itself, in NumPy: the recurrence of Mamba-2, GLA and the delta rule.

A state ``S (C, M)`` answers a query with ``S^T q``. Each row lets it fade, asks it what it has to say at the vector
``e_i``, and writes what is missing from ``v_i`` at the key ``k_i``:

    S~_i = diag(g_i) S_{i-1}                                 (1)  (C, M)
    u_i = v_i - S~_i^T e_i                                   (2)  (M,)
    S_i = S~_i + k_i u_i^T                                   (3)  (C, M)
    out_i = S_i^T q_i                                        (4)  (M,)

with ``g = exp(log_gate)``, one a row or one a row and channel, and ``S_0 = state``. Without ``e``, which is ``erase``,
``u = v``, and this is a causal product with gates. With ``e = beta k`` and ``v = beta x`` it is the delta rule, which
moves what stands at ``k`` a part ``beta`` of the way to ``x``. Two forms stand here, ``forward_by_row`` and
``backward_by_row`` as printed (`delta_product_plain`), ``forward`` and ``backward`` a chunk at a time.

The gradient, by hand
---------------------
Let ``G_i`` be the gradient of a loss with respect to ``out_i``, and ``A_i, A~_i, r_i`` those with respect to ``S_i``,
``S~_i, u_i``. ``S_i`` is used in (4), and one row later in (1):

    A_i = q_i G_i^T + diag(g_{i+1}) A~_{i+1}                 (5)

(3) hands it to ``u_i`` and to ``S~_i``, which (2) uses once more; ``v_i`` is used in (2) alone:

    r_i = A_i^T k_i = d_v_i                                  (6)
    A~_i = A_i - e_i r_i^T                                   (7)

This is the same rule, backward in time, with ``k`` and ``e`` exchanged. What remains is read off (3), (2), (4) and (1),

    d_k_i = A_i u_i,   d_e_i = -S~_i r_i,   d_q_i = S_i G_i                             (8) (9) (10)
    d_log_g_i = rowsum(A~_i * S~_i)                          (11)  (C,), summed up where one gate serves all channels

and ``d_state = diag(g_1) A~_1``. There is another formula for the gate, which needs no states:
``rowsum(d_state * S_N)`` and the sum of ``q * d_q + e * d_e - k * d_k`` over the rows from ``i`` on. With strong gates
it is a small difference of large numbers. At a log gate of -20 no digit of it is right in float32, at -40 none in
float64, so it is not used.

A chunk
-------
For the ``T`` rows of a chunk let ``ratio_ij = g_{j+1} ... g_i`` for ``j <= i``, else 0, and ``c_i = g_1 ... g_i``, made
by multiplication alone: a quotient of such products would be 0 / 0 after a gate of 0. ``S`` is the state before the
chunk, rows are stacked in ``Q, K, E, V, U, G, R``, and

    A_ij = e_i . (ratio_ij * k_j) for j < i,   P_ij = q_i . (ratio_ij * k_j) for j <= i

Row ``i`` meets ``S~_i = diag(c_i) S + sum_{j<i} (ratio_ij * k_j) u_j^T``. So (2) is a triangular system of equations
for the rows of ``U``, solved from the first to the last, and (4) and (3) are products:

    (I + A) U = V - (c * E) S                                (13)
    out = (c * Q) S + P U                                    (14)
    S' = c_T S + (ratio_T * K)^T U                           (15)

Their transposes, given ``dS'``, the gradient of ``S'``, are the backward pass. ``U`` is used in (14) and (15), and (13)
sends what arrives there through the transposed system, solved from the last row to the first:

    (I + A)^T R = P^T G + (ratio_T * K) dS',   dV = R        (16)
    dA = -tril(R U^T, -1),   dP = tril(G U^T)                (17)
    dS = (c * Q)^T G - (c * E)^T R + c_T dS'                 (18)
    d_q_i = c_i * (S G_i) + sum_j dP_ij ratio_ij * k_j                                  (19)
    d_e_i = -c_i * (S R_i) + sum_j dA_ij ratio_ij * k_j                                 (20)
    d_k_j = ratio_Tj * (dS' u_j) + sum_i ratio_ij * (dP_ij q_i + dA_ij e_i)             (21)

Gate ``i`` multiplies all that a row ``l >= i`` reads of a row ``j < i``, and its gradient is a sum over these pairs.
Let ``W_lj`` be what the pair gives. With ``S`` as row 0, before the rows 1 ... T of the chunk, and ``S'`` as row T + 1,

    W_lj = ratio_lj * k_j * (dP_lj q_l + dA_lj e_l),   W_l0 = c_l * (q_l * (S G_l) - e_l * (S R_l)),
    W_{T+1,j} = ratio_Tj * k_j * (dS' u_j),            W_{T+1,0} = c_T * rowsum(dS' * S),
    d_log_g_i = sum of W_lj over j < i <= l                                             (22)

This is (11) without the states of rows. No pair is in it that no gate ``i`` stands between, so nothing cancels, and
after a gate of 0 it is exactly 0. The sum over ``j < i`` of ``W_lj`` is ``q_l`` times what of ``d_q_l`` comes from rows
before ``i``, and likewise with ``e``.

References
----------
Yang et al. (2024), "Parallelizing linear transformers with the delta rule over sequence length".
Yang et al. (2025), "Gated delta networks: improving Mamba2 with delta rule", section 3.3 (chunks).
Kimi Team (2025), "Kimi Linear: an expressive, efficient attention architecture" (a gate a channel).
"""

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.kernels.reference.delta_product_plain import (
    CHUNK,
    backward_by_row,
    by_channel,
    chunks_of,
    copy_or_zeros,
    forward_by_row,
    gate_of,
    read,
    step,
    sum_to_gates,
)

__all__ = ["CHUNK", "backward", "backward_by_row", "forward", "forward_by_row", "step"]


def forward(q, k, v, erase, log_gate, state):
    """Equations (1)-(4), a chunk at a time.

    Parameters
    ----------
    q, k, v : ndarray, ``(..., N, C)``, ``(..., N, C)``, ``(..., N, M)``
    erase : ndarray ``(..., N, C)`` or None
        ``e``; None is 0, for a state that fades alone.
    log_gate : ndarray ``(..., N)`` or ``(..., N, C)``, or None
        ``log g <= 0``, a number a row or one a channel; -inf forgets everything. None is 0.
    state : ndarray ``(..., C, M)`` or None
        ``S_0``; None is 0. Not written to.

    Returns
    -------
    out : ndarray ``(..., N, M)``
    state : ndarray ``(..., C, M)``
        ``S_N``.
    u : ndarray ``(..., N, M)``
        What was written, for :func:`backward`; ``v`` itself where ``erase`` is None.
    """
    s, log_gate = copy_or_zeros(state, k, v), by_channel(log_gate, v)
    out, u = np.empty(v.shape, v.dtype), v if erase is None else np.empty(v.shape, v.dtype)
    for rows in chunks_of(v.shape[-2]):
        chunk = _faded(k, log_gate, rows)
        if erase is not None:
            e = erase[..., rows, :]
            missing = v[..., rows, :] - (chunk.since_start * e) @ s  # (..., T, M)
            u[..., rows, :] = _solve(_pairs(e, chunk, -1), missing)  # (13)
        q_rows, u_rows = q[..., rows, :], u[..., rows, :]
        out[..., rows, :] = (chunk.since_start * q_rows) @ s + _pairs(q_rows, chunk, 0) @ u_rows  # (14)
        s = _advance(s, chunk, u_rows)
    return out, s, u


def backward(d_out, d_state, q, k, v, erase, log_gate, state, u):
    """Gradients of :func:`forward`, equations (16)-(22).

    Parameters
    ----------
    d_out : ndarray ``(..., N, M)``
    d_state : ndarray ``(..., C, M)`` or None
        Gradient of the state that :func:`forward` returned; None is 0.
    q, k, v, erase, log_gate, state
        What :func:`forward` was given.
    u : ndarray ``(..., N, M)``
        What it returned.

    Returns
    -------
    d_q, d_k, d_v, d_erase, d_log_gate, d_state : ndarray
        Shaped like their inputs; ``d_erase`` and ``d_log_gate`` are None where the input is, ``d_state`` never is.
    """
    d_q, d_k, d_v = (np.empty(x.shape, x.dtype) for x in (q, k, v))
    d_erase, d_log_gate = (None if x is None else np.empty(x.shape, x.dtype) for x in (erase, log_gate))
    gates, target, s, noted = by_channel(log_gate, v), by_channel(d_log_gate, v), copy_or_zeros(state, k, v), []
    for rows in chunks_of(v.shape[-2]):
        noted.append(s)
        s = _advance(s, _faded(k, gates, rows), u[..., rows, :])

    d_s = copy_or_zeros(d_state, k, v)
    for rows in chunks_of(v.shape[-2], backwards=True):
        chunk, s, q_rows = _faded(k, gates, rows), noted.pop(), q[..., rows, :]
        g, u_rows = d_out[..., rows, :], u[..., rows, :]
        d_u = _pairs(q_rows, chunk, 0).swapaxes(-1, -2) @ g + chunk.at_end @ d_s  # (..., T, M)
        d_p = np.tril(g @ u_rows.swapaxes(-1, -2))  # (17)  (..., T, T)
        of_s = chunk.since_start * (g @ s.swapaxes(-1, -2))  # (..., T, C)
        d_q[..., rows, :] = of_s + _pairs_for_rows(d_p, chunk)  # (19)
        of_d_s = u_rows @ d_s.swapaxes(-1, -2)  # (..., T, C)
        d_k[..., rows, :] = chunk.until_end * of_d_s + _pairs_for_keys(d_p, q_rows, chunk)  # (21)
        of_both, reads = (chunk.whole * d_s * s).sum(axis=-1), [(q_rows, of_s, d_p)]  # (..., C)
        d_s = chunk.whole * d_s + (chunk.since_start * q_rows).swapaxes(-1, -2) @ g  # (18)
        if erase is not None:
            e = erase[..., rows, :]
            d_u = _solve_transposed(_pairs(e, chunk, -1), d_u)  # (16)
            d_a = -np.tril(d_u @ u_rows.swapaxes(-1, -2), -1)  # (17)
            of_s = -chunk.since_start * (d_u @ s.swapaxes(-1, -2))
            d_erase[..., rows, :] = of_s + _pairs_for_rows(d_a, chunk)  # (20)
            d_k[..., rows, :] += _pairs_for_keys(d_a, e, chunk)  # (21)
            d_s -= (chunk.since_start * e).swapaxes(-1, -2) @ d_u  # (18)
            reads.append((e, of_s, d_a))
        d_v[..., rows, :] = d_u
        if target is not None:
            between = _between(reads, chunk, chunk.at_end * of_d_s, of_both)  # (22)
            target[..., rows, :] = sum_to_gates(between, target)
    return d_q, d_k, d_v, d_erase, d_log_gate, d_s


def _between(reads, chunk, of_d_s, of_both):
    """Equation (22), ``(..., T, C)``, given ``W_{T+1,j}`` and ``W_{T+1,0}``; first all that is before each gate."""
    total = np.cumsum(np.concatenate([of_both[..., None, :], of_d_s[..., :-1, :]], axis=-2), axis=-2)  # (..., T, C)
    after = np.tri(total.shape[-2], dtype=np.bool_)[..., None]  # l >= i
    for x, of_s, d_pairs in reads:
        terms = d_pairs[..., :-1, None] * chunk.keys[..., :-1, :]  # (..., T, T - 1, C)
        before = np.cumsum(np.concatenate([of_s[..., None, :], terms], axis=-2), axis=-2)  # j < i  (..., T, T, C)
        total += np.where(after, x[..., None, :] * before, x.dtype.type(0)).sum(axis=-3)
    return total


class Faded(NamedTuple):
    """The keys of a chunk of ``T`` rows as its later rows find them, and the products of gates that make them so.

    One gate for all channels makes an axis of 1 where it says ``C``.
    """

    keys: Any  # (..., T, T, C), ratio_ij * k_j for j <= i, else 0
    at_end: Any  # (..., T, C), ratio_Tj * k_j
    gate: Any  # (..., T, C)
    since_start: Any  # (..., T, C), c_i = g_1 ... g_i
    until_end: Any  # (..., T, C), ratio_Tj = g_{j+1} ... g_T
    whole: Any  # (..., C, 1), c_T


def _faded(k, log_gate, rows):
    """Multiplication only: a gate of 0 or close to 1 is as good as any other."""
    k = k[..., rows, :]  # (..., T, C)
    gate = gate_of(None if log_gate is None else log_gate[..., rows, :], k)
    *leading, t, c = k.shape
    keys = np.zeros((*leading, t, t, c), k.dtype)
    for i in range(t):
        np.multiply(gate[..., i, None, :], keys[..., i - 1, :i, :], out=keys[..., i, :i, :])
        keys[..., i, i, :] = k[..., i, :]
    until_end = np.ones(gate.shape, gate.dtype)
    until_end[..., :-1, :] = np.cumprod(gate[..., :0:-1, :], axis=-2)[..., ::-1, :]
    since_start = np.cumprod(gate, axis=-2)
    return Faded(keys, keys[..., -1, :, :], gate, since_start, until_end, since_start[..., -1, :, None])


def _pairs(x, chunk, diagonal):
    """``x_i . (ratio_ij * k_j)`` for ``j <= i + diagonal``, else 0: ``(..., T, T)``, ``P`` or ``A``."""
    return np.tril((chunk.keys @ x[..., :, :, None])[..., 0], diagonal)


def _pairs_for_rows(d_pairs, chunk):
    """``sum_j d_ij ratio_ij * k_j``, what :func:`_pairs` sends to ``x_i``: ``(..., T, C)``."""
    return (d_pairs[..., :, None, :] @ chunk.keys)[..., 0, :]


def _pairs_for_keys(d_pairs, x, chunk):
    """``sum_i d_ij ratio_ij * x_i``, what :func:`_pairs` sends to ``k_j``: ``(..., T, C)``."""
    d_k = d_pairs[..., -1, :, None] * x[..., -1, None, :]  # (..., T, C)
    for i in reversed(range(x.shape[-2] - 1)):
        upto = slice(i + 1)
        d_k[..., upto, :] *= chunk.gate[..., i + 1, None, :]
        d_k[..., upto, :] += d_pairs[..., i, upto, None] * x[..., i, None, :]
    return d_k


def _advance(s, chunk, u):
    """The state after a chunk, from the state before it."""
    return chunk.whole * s + chunk.at_end.swapaxes(-1, -2) @ u  # (15)


def _solve(a, x):
    """``(I + A)^{-1} X`` from the first row to the last: without pivots, so that no later row moves an earlier one."""
    u = x.copy()
    for i in range(1, x.shape[-2]):
        u[..., i, :] -= read(u[..., :i, :], a[..., i, :i])
    return u


def _solve_transposed(a, x):
    """``(I + A)^{-T} X`` from the last row to the first."""
    r = x.copy()
    for i in reversed(range(x.shape[-2] - 1)):
        r[..., i, :] -= read(r[..., i + 1 :, :], a[..., i + 1 :, i])
    return r
