"""Linear attention (Katharopoulos et al. 2020): a similarity that is an inner product, so that queries share sums.

Softmax attention weights value ``j`` for query ``i`` by the similarity ``exp(q_i . k_j / sqrt D)``. Any other that is
not negative will do. If the similarity is an inner product of features, ``phi(q_i) . phi(k_j)``, the query factors out:

    S = sum_j phi(k_j) v_j^T                                 (1)  (C, M)
    Z = sum_j phi(k_j)                                       (2)  (C,)
    out_i = phi(q_i)^T S / (phi(q_i)^T Z + eps)              (3)  (M,)

This is associativity, ``(phi(Q) phi(K)^T) V = phi(Q) (phi(K)^T V)``: ``O(N C M)`` time instead of ``O(N^2 max(C, M))``.
Causal, for ``N = L``, ``j`` runs up to ``i``: the sums grow by a key from query to query, as a recurrent state does:

    S_i = S_{i-1} + phi(k_i) v_i^T,   Z_i = Z_{i-1} + phi(k_i)                               (4)

:Time: ``O((N + L) C M)``
:Memory: ``O((N + L) C + N M)``
:Causal: yes
:Exact: no, another similarity
:Gives: attention with the similarity ``phi(q) . phi(k)``

The gradient, by hand
---------------------
Let ``G_i`` be the gradient of a loss with respect to ``out_i = n_i / d_i``, numerator over denominator. Then

    dn_i = G_i / d_i,   dd_i = -dn_i . out_i                 (5)

From ``n_i = S^T phi(q_i)``, ``d_i = Z^T phi(q_i) + eps``, (1) and (2),

    dphi(q_i) = S dn_i + Z dd_i                              (6)
    dS = sum_i phi(q_i) dn_i^T,   dZ = sum_i phi(q_i) dd_i   (7)
    dphi(k_j) = dS v_j + dZ                                  (8)
    dv_j = dS^T phi(k_j)                                     (9)

Causal, ``S`` and ``Z`` in (6) are those of row ``i``, and the sums (7) that reach key ``j`` run over ``i >= j``: prefix
sums again, from the other end. One state at a time is enough: rows are kept, and never every ``S_i``. `chunked_linear`
computes the same a chunk at a time. Exponential features, which would overflow here, are in `exponential`.

One feature, and two keys of similarity 3 and 1 to the query, so the weights of the values are 3/4 and 1/4:

>>> q, k, v = np.array([[0.0]]), np.array([[2.0], [0.0]]), np.array([[10.0], [20.0]])
>>> out, saved = forward(q, k, v, eps=0.0)
>>> out, backward(np.ones((1, 1)), saved).v.T
(array([[12.5]]), array([[0.75, 0.25]]))

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", sections 3.2 and 3.3, equations 13-15, Algorithm 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention import exponential
from linattn_ref.attention.features.feature_maps import FeatureMap, check_linear, elu_plus_one, is_exponential
from linattn_ref.attention.parts.masks import divide, first_seen, shown
from linattn_ref.attention.parts.packed import takes_offsets
from linattn_ref.attention.parts.recurrent import matrix_of, step_of
from linattn_ref.attention.parts.shared_heads import of_keys, takes_groups
from linattn_ref.attention.parts.sums import State, check_d_state, combine, combine_gradients, no_keys
from linattn_ref.op import Array, Bool, Float, op

__all__ = ["Gradients", "Saved", "State", "backward", "combine", "combine_gradients", "forward", "init_state"]
__all__ += ["matrix", "step", "summarise"]


class Saved(NamedTuple):
    """What the backward pass needs: rows, and the state before the first key."""

    phi_q: Float[Array, "... N C"]
    phi_k: Float[Array, "... L C"]  # masked rows 0
    v: Float[Array, "... L M"]  # masked rows 0
    out: Float[Array, "... N M"]
    d: Float[Array, "... N 1"]
    first: State | None
    state: State  # after the last key
    features: tuple[FeatureMap, Any, Any]  # phi, and what its gradient needs of q and of k
    key_mask: Bool[Array, "... L"] | None
    causal: bool


class Gradients(NamedTuple):
    q: Float[Array, "... N D"]
    k: Float[Array, "... L D"]
    v: Float[Array, "... L M"]
    state: State | None = None  # where forward was given one


@op(look=check_linear)
@takes_offsets
@takes_groups
def forward(
    q: Float[Array, "... N D"],
    k: Float[Array, "... L D"],
    v: Float[Array, "... L M"],
    *,
    feature_map: FeatureMap = elu_plus_one,
    causal: bool = False,
    key_mask: Bool[Array, "... L"] | None = None,
    eps: float = 1e-6,
    state: State | None = None,
) -> tuple[Array, Saved | exponential.Saved]:
    """Equations (1)-(4), from ``state`` on. The mask acts after ``phi``, because ``phi(0)`` is not 0."""
    if is_exponential(feature_map):
        return exponential.forward(q, k, v, feature_map, causal=causal, key_mask=key_mask, state=state)
    k, v = shown(k, key_mask), shown(v, key_mask)
    (phi_q, of_q), (phi_k, of_k) = feature_map.forward(q), feature_map.forward(k)
    phi_k = shown(phi_k, key_mask)
    out, d = np.empty_like(v, shape=(*q.shape[:-1], v.shape[-1])), np.empty_like(q[..., :1])
    s, z, _ = state or no_keys(np.empty_like(v, shape=(*v.shape[:-2], phi_k.shape[-1], v.shape[-1])))
    for rows, keys in first_seen(q, k, causal):  # all at once; causal (4), one query at a time
        s, z = s + phi_k[keys].mT @ v[keys], z + phi_k[keys].sum(axis=-2)  # (1), (2)
        d[rows] = phi_q[rows] @ z[..., None] + eps  # (3), the denominator
        out[rows] = divide(phi_q[rows] @ s, d[rows])  # (3)
    features = feature_map, of_q, of_k
    return out, Saved(phi_q, phi_k, v, out, d, state, State(s, z), features, key_mask, causal)


@op(look=check_d_state)
def backward(
    d_out: Float[Array, "... N M"], saved: Saved | exponential.Saved, *, d_state: State | None = None
) -> Gradients | exponential.Gradients:
    """Equations (5)-(9); ``d_state`` is the gradient of ``saved.state``, where something went on from it."""
    phi_q, phi_k, v, out, d, state, last, (feature_map, of_q, of_k), key_mask, causal = saved  # type: ignore[misc]
    d_phi_q, d_phi_k, d_v = np.empty_like(phi_q), np.empty_like(phi_k), np.empty_like(v)
    d_n = divide(d_out, d)  # (5)
    d_d = -(d_n * out).sum(axis=-1, keepdims=True)  # (5)
    s, z, _ = state or no_keys(last.s)
    for rows, keys in first_seen(phi_q, phi_k, causal):  # causal (4)
        s, z = s + phi_k[keys].mT @ v[keys], z + phi_k[keys].sum(axis=-2)  # (1), (2)
        d_phi_q[rows] = d_n[rows] @ s.mT + d_d[rows] * z[..., None, :]  # (6)
    d_s, d_z, _ = d_state or no_keys(last.s)
    for rows, keys in reversed(first_seen(phi_q, phi_k, causal)):
        d_s, d_z = d_s + phi_q[rows].mT @ d_n[rows], d_z + (phi_q[rows] * d_d[rows]).sum(axis=-2)  # (7)
        d_phi_k[keys] = v[keys] @ d_s.mT + d_z[..., None, :]  # (8)
        d_v[keys] = phi_k[keys] @ d_s  # (9)
    d_q, d_k = feature_map.backward(d_phi_q, of_q), feature_map.backward(shown(d_phi_k, key_mask), of_k)
    return Gradients(d_q, d_k, shown(d_v, key_mask), state and State(d_s, d_z))


step, matrix = step_of(forward), matrix_of(forward)


@op(look=check_linear)
def init_state(
    leading: tuple[int, ...],
    key_width: int,
    value_width: int,
    *,
    feature_map: FeatureMap = elu_plus_one,
    dtype: Any = np.float64,
    groups: int = 1,
) -> State:
    """The state before any key, for queries with the ``leading`` axes."""
    s = np.zeros((*of_keys(leading, groups), feature_map.width(key_width), value_width), dtype)
    return no_keys(s, 1 if is_exponential(feature_map) else None)


@op(look=check_linear)
def summarise(
    k: Float[Array, "... L D"],
    v: Float[Array, "... L M"],
    *,
    feature_map: FeatureMap = elu_plus_one,
    key_mask: Bool[Array, "... L"] | None = None,
) -> State:
    """The state after some keys, (1) and (2), for any queries: what a machine reports about its piece of a sequence."""
    return forward(k[..., :1, :], k, v, feature_map=feature_map, key_mask=key_mask, eps=0.0)[1].state
