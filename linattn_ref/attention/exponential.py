"""Linear attention with exponential features, such as the Performer's, whose scale cancels: a running maximum.

Features of the form

    phi_c(x) = exp(a_c(x)) b_c(x)                            (1)

overflow or underflow, but their ratios need not. As in online softmax, we carry a running maximum: for every feature
the largest exponent of the keys so far. When it rises from ``r`` to ``r'``, the sums over earlier keys shrink by the
factor ``f``:

    r'_c = max(r_c, max_j a_c(k_j)),   f_c = exp(r_c - r'_c)                                 (2)  (C,)
    S' = f * S + sum_j exp(a(k_j) - r') b(k_j) v_j^T         (3)  (C, M)
    Z' = f * Z + sum_j exp(a(k_j) - r') b(k_j)               (4)  (C,)

where ``j`` runs over the new keys. So ``S`` and ``Z`` are the sums of linear attention with row ``c`` divided by
``exp(r_c)``. The query's features are multiplied by it, and then divided by ``exp(t_i)``, which cancels in (6):

    w_i = exp(a(q_i) + r - t_i) b(q_i),   t_i = max_c (a_c(q_i) + r_c)                       (5)  (C,)
    out_i = w_i^T S / (w_i^T Z)                              (6)  (M,)

No exponent is above 0, so nothing overflows. In the feature that attains ``t_i`` the query's exponential is 1, and so
is that of one key, so with positive ``b`` the denominator does not vanish either. For query ``i``, ``r`` depends only
on keys that it may see: no later key, however large, changes an earlier row by a single bit, and no masked key changes
any row. All this needs ``eps = 0``, since otherwise ``t_i`` would not cancel. An exponent beyond the range of its dtype
counts as the largest or the lowest number.

The gradient, by hand
---------------------
``r`` and ``t`` cancel, so the output does not depend on them: they count as constants. What remains is linear
attention's gradient, (5)-(9) of ``linear.py``, with ``w_i`` for ``phi(q_i)`` and ``exp(a(k_j) - r) b(k_j)`` for
``phi(k_j)``. One step is new. By (3) and (4), the gradients of the sums before a rise are

    dS = f * dS',   dZ = f * dZ'                             (7)

and the feature map's own backward pass does the rest, since (1) times a constant has the same derivative formula.

One direction, two keys. The feature of the first, ``exp(1000 - 1000^2 / 2)``, is 0 in float64, and a plain ratio would
be 0 / 0. On its own scale it is 1, until the second key raises ``r`` to 1/2.

>>> from linattn_ref.attention.features.feature_maps import favor_positive
>>> q, k, v = np.array([[1.0], [1.0]]), np.array([[1000.0], [1.0]]), np.array([[3.0], [6.0]])
>>> out, saved = forward(q, k, v, favor_positive(np.array([[1.0]])), causal=True)
>>> out.T, saved.state.log_scale
(array([[3., 6.]]), array([0.5]))

References
----------
Choromanski et al. (2021), "Rethinking attention with Performers", section 2.3.
Milakov and Gimelshein (2018), "Online normalizer calculation for softmax" (the running maximum).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.features.feature_maps import ExponentialMap, FeatureMap, check_linear, is_exponential
from linattn_ref.attention.parts.masks import divide, first_seen, in_range, shown
from linattn_ref.attention.parts.sums import State, no_keys, on_scale
from linattn_ref.op import Array, Bool, Float, op

__all__ = ["Gradients", "Saved", "backward", "features", "forward"]


class Saved(NamedTuple):
    """What the backward pass needs: rows, and the state before the first key."""

    q: Float[Array, "... N D"]
    k: Float[Array, "... L D"]
    w: Float[Array, "... N C"]  # phi(q), divided by exp(t - r)
    phi: Float[Array, "... L C"]  # phi(k), divided by exp(r); masked rows 0
    v: Float[Array, "... L M"]  # masked rows 0
    f: tuple[Array, ...]  # (..., 1 or C) for each block of keys: all of them, or causal one per query
    out: Float[Array, "... N M"]
    d: Float[Array, "... N 1"]
    first: State | None
    state: State  # after the last key
    feature_map: ExponentialMap
    key_mask: Bool[Array, "... L"] | None
    causal: bool


class Gradients(NamedTuple):
    q: Float[Array, "... N D"]
    k: Float[Array, "... L D"]
    v: Float[Array, "... L M"]
    state: State | None = None  # where forward was given one


def look(feature_map: Any, **others: Any) -> None:
    check_linear(feature_map, **others)
    if not is_exponential(feature_map):
        raise TypeError(f"feature_map: expected an exponential one (others: linear.py), got {feature_map.name}")


@op(look=look)
def forward(
    q: Float[Array, "... N D"],
    k: Float[Array, "... L D"],
    v: Float[Array, "... L M"],
    feature_map: ExponentialMap,
    *,
    causal: bool = False,
    key_mask: Bool[Array, "... L"] | None = None,
    state: State | None = None,
) -> tuple[Array, Saved]:
    """Equations (1)-(6), from ``state`` on; ``split`` of the feature map returns ``a`` and ``b``, None for 1."""
    k, v = shown(k, key_mask), shown(v, key_mask)
    (a_q, b_q), (a_k, b_k) = feature_map.split(q), feature_map.split(k)  # (1)
    b_q, b_k = (np.ones_like(x[..., :1]) if b is None else b for x, b in ((q, b_q), (k, b_k)))
    a_q, a_k = in_range(a_q), in_range(a_k)
    a_q = a_q - a_q.max(axis=-1, keepdims=True)  # a part of t, taken first, or r would round away
    if key_mask is not None:
        a_k = np.where(key_mask[..., None], a_k, a_k.dtype.type(-np.inf))  # phi = 0, and r stays
    w, phi = (np.empty_like(a, shape=np.broadcast_shapes(a.shape, b.shape)) for a, b in ((a_q, b_q), (a_k, b_k)))
    out, d = np.empty_like(v, shape=(*q.shape[:-1], v.shape[-1])), np.empty_like(q[..., :1])
    s, z, r = state or no_keys(np.empty_like(v, shape=(*v.shape[:-2], phi.shape[-1], v.shape[-1])), a_k.shape[-1])
    f: list[Array] = []
    for rows, keys in first_seen(q, k, causal):  # all at once; causal, one query at a time
        before, r = r, np.maximum(r, a_k[keys].max(axis=-2))  # (2)
        f.append(np.exp(before - r))  # (2)
        phi[keys] = np.exp(a_k[keys] - r[..., None, :]) * b_k[keys]
        s, z = add(s, z, f[-1], phi[keys], v[keys])  # (3), (4)
        a = a_q[rows] + r[..., None, :]
        w[rows] = np.exp(a - a.max(axis=-1, keepdims=True)) * b_q[rows]  # (5)
        d[rows] = w[rows] @ z[..., None]
        out[rows] = divide(w[rows] @ s, d[rows])  # (6)
    return out, Saved(q, k, w, phi, v, tuple(f), out, d, state, State(s, z, r), feature_map, key_mask, causal)


@op
def backward(d_out: Float[Array, "... N M"], saved: Saved, *, d_state: State | None = None) -> Gradients:
    """Linear attention's (5)-(9), and (7) here; ``d_state`` is the gradient of ``saved.state``."""
    q, k, w, phi, v, f, out, d, state, last, feature_map, key_mask, causal = saved
    d_w, d_phi, d_v = np.empty_like(w), np.empty_like(phi), np.empty_like(v)
    d_n = divide(d_out, d)  # linear (5)
    d_d = -(d_n * out).sum(axis=-1, keepdims=True)  # linear (5)
    s, z, r = state or no_keys(last.s)
    blocks = [(*block, f_block) for block, f_block in zip(first_seen(q, k, causal), f, strict=True)]
    for rows, keys, f_block in blocks:
        s, z = add(s, z, f_block, phi[keys], v[keys])  # (3), (4)
        d_w[rows] = d_n[rows] @ s.mT + d_d[rows] * z[..., None, :]  # linear (6)
    d_s, d_z = no_keys(last.s)[:2] if d_state is None else on_scale(d_state, last.log_scale)
    for rows, keys, f_block in reversed(blocks):
        d_s, d_z = d_s + w[rows].mT @ d_n[rows], d_z + (w[rows] * d_d[rows]).sum(axis=-2)  # linear (7)
        d_phi[keys] = v[keys] @ d_s.mT + d_z[..., None, :]  # linear (8)
        d_v[keys] = phi[keys] @ d_s  # linear (9)
        d_s, d_z = f_block[..., None] * d_s, f_block * d_z  # (7)
    d_q = feature_map.backward(d_w, (q, w))
    d_k = shown(feature_map.backward(d_phi, (k, phi)), key_mask)
    return Gradients(d_q, d_k, shown(d_v, key_mask), state and State(d_s, d_z, r))


def add(s: Array, z: Array, f: Array, phi: Array, v: Array) -> tuple[Array, Array]:
    """Equations (3) and (4): a few more keys."""
    return f[..., None] * s + phi.mT @ v, f * z + phi.sum(axis=-2)


def features(feature_map: FeatureMap, q: Array, k: Array, key_mask: Array | None) -> Any:
    """``phi`` of all queries and all keys, exponential ones by (2) and (5), each with what its gradient needs."""
    if not is_exponential(feature_map):
        (phi_q, of_q), (phi_k, of_k) = feature_map.forward(q), feature_map.forward(k)
        return (phi_q, of_q), (shown(phi_k, key_mask), of_k)
    v = np.zeros_like(k[..., :1])
    saved = forward(q, k, v, feature_map, key_mask=key_mask)[1]
    return (saved.w, (q, saved.w)), (saved.phi, (k, saved.phi))
