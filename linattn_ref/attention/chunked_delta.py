"""The gated delta rule, a chunk at a time: the numbers of ``delta_rule.py`` by products of matrices.

Every row needs the state that the row before it leaves. Within a chunk of ``T`` rows we can write that state out. Let
``S`` be the state before the chunk, number the chunk's rows from 1, and multiply the gates between two rows:

    ratio_ij = g_{j+1} * ... * g_i  for j <= i, else 0;   c_i = g_1 * ... * g_i

by multiplication only, because a quotient of two ``c`` is 0 / 0 after a gate of 0. Row ``i`` then reads the state
``S~_i = diag(c_i) S + sum_{j<i} (ratio_ij * k_j)^T u_j``, and with

    A_ij = e_i . (ratio_ij * k_j)  for j < i,   P_ij = q_i . (ratio_ij * k_j)  for j <= i    (12)

the rule's (2) becomes a triangular system for the rows of ``U``, and its (3) and (4) become products. The
numbers of the equations go on from ``delta_rule.py``.

    (I + A) U = V - (c * E) S                                (13)  (T, M)
    out = (c * Q) S + P U                                    (14)  (T, M)
    S' = c_T * S + (ratio_T * K)^T U                         (15)  (C, M)

:Time: ``O(N T (C + M) + N C M)``
:Memory: ``O(N (C + M) + N C M / T)``
:Causal: always
:Exact: no, another similarity
:Gives: the numbers of `delta_rule`, by products of matrices

The gradient, by hand
---------------------
Given ``G = d out`` and ``dS'``, the transposes of (14) and (15) reach ``U``, and (13) passes on what arrives there:

    (I + A)^T R = P^T G + (ratio_T * K) dS',   dV = R        (16)
    dA = -tril(R U^T, -1),   dP = tril(G U^T)                (17)
    dS = (c * Q)^T G - (c * E)^T R + c_T * dS'               (18)
    dq_i = c_i * (G_i S^T) + sum_j dP_ij ratio_ij * k_j      (19)
    de_i = -c_i * (R_i S^T) + sum_j dA_ij ratio_ij * k_j     (20)
    dk_j = ratio_Tj * (u_j dS'^T) + sum_i ratio_ij * (dP_ij q_i + dA_ij e_i)                 (21)

Gate ``i`` multiplies everything that a row ``l >= i`` reads of a row ``j < i``. So its gradient is a sum over all those
pairs. Let ``W_lj`` be the part of ``d log g`` that comes from the pair. Count ``S`` as row 0, and ``S'`` as row T+1:

    W_lj = ratio_lj * k_j * (dP_lj q_l + dA_lj e_l),   W_l0 = c_l * (q_l * (G_l S^T) - e_l * (R_l S^T)),
    W_{T+1,j} = ratio_Tj * k_j * (u_j dS'^T),          W_{T+1,0} = c_T * rowsum(dS' * S),
    d log g_i = sum of W_lj over j < i <= l                  (22)  (C,)

This is (11) of the rule, without its states. The pairs with ``l = j``, which pass no gate, are in no sum. (The other
formula there contains them twice, with opposite signs, and so it loses its digits.)

Two rows that share a key are one chunk: the second finds the first value and replaces it.

>>> x, v = np.ones((2, 1)), np.array([[1.0], [5.0]])
>>> forward(x, x, v, x)[0].T
array([[1., 5.]])

References
----------
Yang et al. (2024), "Parallelizing linear transformers with the delta rule over sequence length", section 3.
Yang et al. (2025), "Gated delta networks: improving Mamba2 with delta rule", section 3.3.
Kimi Team (2025), "Kimi Linear", with a gate per channel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from linattn_ref.attention.delta_rule import Gradients, State, check_gate, gate_rows, like_log_gate, nothing
from linattn_ref.attention.delta_rule import Saved as Rows
from linattn_ref.attention.parts.masks import mix, shown
from linattn_ref.op import Array, Bool, Float, op

__all__ = ["Gradients", "Saved", "State", "backward", "forward"]


T = 16  # rows; for M = 64, the (T, T, C) ratios are then four times as many numbers as a (C, M) state


class Saved(Rows):
    """What the backward pass needs: the rows of `delta_rule`, and in ``noted`` the state before each chunk."""


@op(values=check_gate)
def forward(
    q: Float[Array, "... N C"],
    k: Float[Array, "... N C"],
    v: Float[Array, "... N M"],
    erase: Float[Array, "... N C"] | None = None,
    log_gate: Float[Array, "... N C?"] | None = None,
    *,
    key_mask: Bool[Array, "... N"] | None = None,
    state: State | None = None,
) -> tuple[Array, Saved]:
    """Equations (12)-(15); arguments and results are those of `delta_rule.forward`."""
    k, v = shown(k, key_mask), shown(v, key_mask)
    e = np.zeros_like(k) if erase is None else shown(erase, key_mask)
    gate, s = gate_rows(log_gate, q, key_mask), (state or nothing(k, v)).s
    out, u, noted = np.empty_like(v), np.empty_like(v), []
    for rows in chunks(q):
        noted.append(s)
        c, _, met = products(gate[rows], k[rows])
        a, p = np.tril(pairs(e[rows], met), -1), pairs(q[rows], met)  # (12)
        u[rows] = solve(a, v[rows] - (c * e[rows]) @ s)  # (13)
        out[rows] = (c * q[rows]) @ s + mix(p, u[rows])  # (14)
        s = c[..., -1:, :].mT * s + met[..., -1, :, :].mT @ u[rows]  # (15)
    given = erase is not None, 0 if log_gate is None else log_gate.ndim
    return out, Saved(q, k, e, gate, u, tuple(noted), state, State(s), given, key_mask)


@op
def backward(d_out: Float[Array, "... N M"], saved: Saved, *, d_state: State | None = None) -> Gradients:
    """Equations (16)-(22)."""
    d_q, d_k, d_v, d_e, d_log_gate = (np.empty_like(x) for x in (saved.q, saved.k, saved.u, saved.e, saved.q))
    d_s = (d_state or nothing(saved.k, saved.u)).s
    for rows, s in reversed([*zip(chunks(saved.q), saved.noted, strict=True)]):
        q, k, e, gate, u, g = (x[rows] for x in (*saved[:5], d_out))
        c, ratio, met = products(gate, k)
        a, p = np.tril(pairs(e, met), -1), pairs(q, met)  # (12)
        c_end, ratio_end = c[..., -1:, :], ratio[..., -1, :, :]
        r = solve_transposed(a, mix(p.mT, g) + met[..., -1, :, :] @ d_s)  # (16)
        d_a, d_p = -np.tril(r @ u.mT, -1), np.tril(g @ u.mT)  # (17)
        from_keys = ratio * (d_p[..., None] * q[..., None, :] + d_a[..., None] * e[..., None, :])  # (T, T, C)
        from_keys = np.where(ratio == 0, ratio, from_keys)  # no NaN of a row that does not meet the key
        from_end = ratio_end * (u @ d_s.mT)
        gs, rs = c * (g @ s.mT), c * (r @ s.mT)
        d_v[rows] = r
        d_q[rows] = gs + np.einsum("...ij,...ijc->...ic", d_p, met)  # (19)
        d_e[rows] = -rs + np.einsum("...ij,...ijc->...ic", d_a, met)  # (20)
        d_k[rows] = from_end + from_keys.sum(axis=-3)  # (21)
        through = (c_end.mT * d_s * s).sum(axis=-1)
        d_log_gate[rows] = rectangles(k[..., None, :, :] * from_keys, q * gs - e * rs, k * from_end, through)  # (22)
        d_s = (c * q).mT @ g - (c * e).mT @ r + c_end.mT * d_s  # (18)
    d_k, d_v, d_e, d_log_gate = (shown(x, saved.key_mask) for x in (d_k, d_v, d_e, d_log_gate))
    (erased, axes), first = saved.given, saved.first
    return Gradients(d_q, d_k, d_v, d_e if erased else None, like_log_gate(d_log_gate, axes), first and State(d_s))


def chunks(q: Array) -> list[Any]:
    """The rows of one chunk after the other."""
    return [np.s_[..., start : start + T, :] for start in range(0, q.shape[-2], T)]


def products(gate: Array, k: Array) -> tuple[Array, Array, Array]:
    """``c (..., T, C)``, ``ratio (..., T, T, C)``, and ``ratio_ij * k_j``: the keys as later rows meet them.

    With one gate per head ``c`` and ``ratio`` have 1 in the place of ``C``.
    """
    t = gate.shape[-2]
    past, before = (np.tri(t, k=shift, dtype=bool)[:, :, None] for shift in (0, -1))  # j <= i, j < i
    ratio: Any = np.cumprod(np.where(before, gate[..., :, None, :], gate.dtype.type(1)), axis=-3)
    ratio = np.where(past, ratio, gate.dtype.type(0))
    return np.cumprod(gate, axis=-2), ratio, np.where(past, ratio * k[..., None, :, :], k.dtype.type(0))


def pairs(x: Array, met: Array) -> Array:
    """``x_i . (ratio_ij * k_j)``, 0 for ``j > i``: ``P``, or ``A`` with its diagonal."""
    return np.tril(np.einsum("...ic,...ijc->...ij", x, met))


def solve(a: Array, x: Array) -> Array:
    """``(I + A)^{-1} X``, from the first row to the last; without pivots, so no later row moves an earlier one."""
    u = x.copy()
    for i in range(1, x.shape[-2]):
        u[..., i : i + 1, :] -= a[..., i : i + 1, :i] @ u[..., :i, :]
    return u


def solve_transposed(a: Array, x: Array) -> Array:
    """``(I + A)^{-T} X``, from the last row to the first."""
    return solve(a[..., ::-1, ::-1].mT, x[..., ::-1, :])[..., ::-1, :]


def rectangles(w: Array, from_start: Array, to_end: Array, through: Array) -> Array:
    """Equation (22): for every ``i`` the sum of a rectangle, first over ``l >= i`` and then over ``j < i``."""
    *leading, t, _, c = w.shape
    all_w = np.empty((*leading, t + 1, t + 1, c), w.dtype)  # rows l = 1 ... T+1, columns j = 0 ... T
    all_w[..., :t, 1:, :], all_w[..., :t, 0, :] = w, from_start
    all_w[..., t, 1:, :], all_w[..., t, 0, :] = to_end, through
    over_l = np.cumsum(all_w[..., ::-1, :, :], axis=-3)[..., ::-1, :, :]  # l >= i
    before = np.tri(t + 1, dtype=bool)[:, :, None]  # j < i
    return np.where(before, over_l, w.dtype.type(0)).sum(axis=-2)[..., :t, :]
