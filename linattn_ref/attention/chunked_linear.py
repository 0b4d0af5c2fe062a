"""Causal linear attention, a chunk at a time: the numbers of ``linear.py`` by products of matrices.

Row by row, every key is an update of rank 1. Within a chunk of ``T`` rows the causal sum can be written out as a masked
matrix, and only between chunks is there a state. With ``S`` and ``Z`` before the chunk, and its rows of features and
values,

    P = tril(phi(Q) phi(K)^T)                                (10)  (T, T)
    n = P V + phi(Q) S,   d = rowsum(P) + phi(Q) Z + eps     (11)
    S' = S + phi(K)^T V,   Z' = Z + sum_j phi(k_j)           (12)

and ``out = n / d``. The first ``L - N`` keys, which every query sees, are sums before the first chunk.

:Time: ``O((N + L) C M + N T max(C, M))``
:Memory: ``O((N + L) C + N M)``
:Causal: always
:Exact: no, another similarity
:Gives: the numbers of `linear`, by products of matrices

The gradient, by hand
---------------------
With ``dn`` and ``dd`` of (5) in ``linear.py``, and ``dS`` and ``dZ`` of the state after the chunk, the transposes of
(11) and (12) are

    dP = tril(dn V^T + dd 1^T)                               (13)  (T, T)
    dphi(Q) = dP phi(K) + dn S^T + dd Z^T                    (14)
    dphi(K) = dP^T phi(Q) + V dS^T + 1 dZ^T                  (15)
    dV = P^T dn + phi(K) dS                                  (16)

and the gradients of the state before the chunk are ``dS + phi(Q)^T dn`` and ``dZ + phi(Q)^T dd``.             (17)

Two rows are one chunk. The second sees both keys, of similarity 1 and 3 to every query, and the first sees its own:

>>> q, k, v = np.zeros((2, 1)), np.array([[0.0], [2.0]]), np.array([[10.0], [20.0]])
>>> forward(q, k, v, eps=0.0)[0].T
array([[10. , 17.5]])

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", section 3.3.1.
Hua et al. (2022), "Transformer quality in linear time", section 3.2 (chunks).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from linattn_ref.attention.features.feature_map_protocol import check_feature_map
from linattn_ref.attention.features.feature_maps import FeatureMap, check_linear, elu_plus_one, is_exponential
from linattn_ref.attention.linear import Gradients
from linattn_ref.attention.linear import Saved as Rows
from linattn_ref.attention.parts.masks import divide, mix, shown
from linattn_ref.attention.parts.sums import State, check_d_state, no_keys
from linattn_ref.op import Array, Bool, Float, op

__all__ = ["Gradients", "Saved", "State", "backward", "forward"]

T = 64  # rows: so few that (T, T) scores cost no more than the state, so many that they are products of matrices


class Saved(Rows):
    """What the backward pass needs: the rows of `linear`, and the state before the first chunk."""


def look(feature_map: Any, causal: bool, **others: Any) -> None:
    check_feature_map(feature_map)
    if is_exponential(feature_map):
        raise ValueError(f"feature_map: expected one that is no exponential (exponential.py), got {feature_map.name}")
    check_linear(feature_map, **others)
    if not causal:
        raise ValueError("causal: expected True, since over all keys there is nothing to cut into chunks, got False")


@op(look=look)
def forward(
    q: Float[Array, "... N D"],
    k: Float[Array, "... L D"],
    v: Float[Array, "... L M"],
    *,
    feature_map: FeatureMap = elu_plus_one,
    causal: bool = True,
    key_mask: Bool[Array, "... L"] | None = None,
    eps: float = 1e-6,
    state: State | None = None,
) -> tuple[Array, Saved]:
    """Equations (10)-(12), from ``state`` on; ``causal`` is True."""
    k, v = shown(k, key_mask), shown(v, key_mask)
    (phi_q, of_q), (phi_k, of_k) = feature_map.forward(q), feature_map.forward(k)
    phi_k = shown(phi_k, key_mask)
    out, d = np.empty_like(v, shape=(*q.shape[:-1], v.shape[-1])), np.empty_like(q[..., :1])
    s, z = before_all_chunks(phi_q, phi_k, v, state)
    for rows, keys in chunks(q, k):
        p = np.tril(phi_q[rows] @ phi_k[keys].mT)  # (10)
        d[rows] = p.sum(axis=-1, keepdims=True) + phi_q[rows] @ z[..., None] + eps  # (11)
        out[rows] = divide(mix(p, v[keys]) + phi_q[rows] @ s, d[rows])  # (11)
        s, z = s + phi_k[keys].mT @ v[keys], z + phi_k[keys].sum(axis=-2)  # (12)
    features = feature_map, of_q, of_k
    return out, Saved(phi_q, phi_k, v, out, d, state, State(s, z), features, key_mask, causal)


@op(look=check_d_state)
def backward(d_out: Float[Array, "... N M"], saved: Saved, *, d_state: State | None = None) -> Gradients:
    """Equations (13)-(17), and (5) of ``linear.py``."""
    phi_q, phi_k, v, out, d, state, last, (feature_map, of_q, of_k), key_mask, _ = saved
    d_phi_q, d_phi_k, d_v = np.empty_like(phi_q), np.empty_like(phi_k), np.empty_like(v)
    d_n = divide(d_out, d)  # linear (5)
    d_d = -(d_n * out).sum(axis=-1, keepdims=True)  # linear (5)
    s, z = before_all_chunks(phi_q, phi_k, v, state)
    for rows, keys in chunks(phi_q, phi_k):
        d_p = np.tril(d_n[rows] @ v[keys].mT + d_d[rows])  # (13)
        d_phi_q[rows] = mix(d_p, phi_k[keys]) + d_n[rows] @ s.mT + d_d[rows] * z[..., None, :]  # (14)
        s, z = s + phi_k[keys].mT @ v[keys], z + phi_k[keys].sum(axis=-2)  # (12)
    d_s, d_z, _ = d_state or no_keys(last.s)
    for rows, keys in reversed(chunks(phi_q, phi_k)):
        p = np.tril(phi_q[rows] @ phi_k[keys].mT)  # (10)
        d_p = np.tril(d_n[rows] @ v[keys].mT + d_d[rows])  # (13)
        d_phi_k[keys] = mix(d_p.mT, phi_q[rows]) + v[keys] @ d_s.mT + d_z[..., None, :]  # (15)
        d_v[keys] = mix(p.mT, d_n[rows]) + phi_k[keys] @ d_s  # (16)
        d_s, d_z = d_s + phi_q[rows].mT @ d_n[rows], d_z + (phi_q[rows] * d_d[rows]).sum(axis=-2)  # (17)
    seen_by_all = np.s_[..., : v.shape[-2] - out.shape[-2], :]
    d_phi_k[seen_by_all] = v[seen_by_all] @ d_s.mT + d_z[..., None, :]  # linear (8)
    d_v[seen_by_all] = phi_k[seen_by_all] @ d_s  # linear (9)
    d_q, d_k = feature_map.backward(d_phi_q, of_q), feature_map.backward(shown(d_phi_k, key_mask), of_k)
    return Gradients(d_q, d_k, shown(d_v, key_mask), state and State(d_s, d_z))


def before_all_chunks(phi_q: Array, phi_k: Array, v: Array, state: State | None) -> tuple[Array, Array]:
    """``S`` and ``Z`` of a state and of the keys that all queries see."""
    seen_by_all = np.s_[..., : v.shape[-2] - phi_q.shape[-2], :]
    s, z = phi_k[seen_by_all].mT @ v[seen_by_all], phi_k[seen_by_all].sum(axis=-2)
    return (s, z) if state is None else (state.s + s, state.z + z)


def chunks(q: Array, k: Array) -> list[Any]:
    """Rows of queries of one chunk after the other, each with the keys of the same chunk."""
    n, shift = q.shape[-2], k.shape[-2] - q.shape[-2]
    bounds = [(start, min(start + T, n)) for start in range(0, n, T)]
    return [(np.s_[..., a:b, :], np.s_[..., shift + a : shift + b, :]) for a, b in bounds]
