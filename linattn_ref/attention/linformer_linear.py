"""Linformer and linear attention together, and why nothing is gained.

Linear attention keeps two sums over the keys. Before they are taken, ``E`` and ``F`` may mix the ``L`` keys and values
into ``R``, as in Linformer:

    K~ = E phi(K),   V~ = F V                                (1)  (R, C), (R, M)
    S = K~^T V~,   Z = sum_r K~_r                            (2)  (C, M), (C,)
    out_i = phi(q_i)^T S / (phi(q_i)^T Z + eps)              (3)

What it costs
-------------
(3) takes ``N C M`` multiplications, as in linear attention. The sums take ``L C M`` there, and ``R L (C + M) + R C M``
here, (1) and (2): less only where ``R`` is below ``C M / (C + M)``, which is 32 for ``C = M = 64``, and even ``R = 1``
saves less than half of the whole, for ``N = L``. ``E`` and ``F`` are ``2 R L`` more parameters. Either way the cost is
linear in the length: Linformer's mixing removed a square, and here there was none left.

What it loses
-------------
The similarity of query ``i`` and mixed key ``r`` is ``phi(q_i)^T (E phi(K))_r``. With entries of ``E`` of either sign
it can be negative where ``phi`` is positive (:func:`negative_similarity_fraction`): the output is no average of values
any more, and the denominator may come out negative or close to 0. Nor can it be causal, for the reason in
``linformer.py``.

:Time: ``O((N + R) C M + L R (C + M))``
:Memory: ``O((N + L + R) C + (N + R) M)``
:Causal: no
:Exact: no
:Gives: linear attention over mixed keys, for comparison

The gradient, by hand
---------------------
(2) and (3) are linear attention over the ``R`` mixed keys, whose backward pass returns ``dK~`` and ``dV~``. From (1),
as for Linformer,

    dE = dK~ phi(K)^T,   dF = dV~ V^T                        (4)
    dphi(K) = E^T dK~,   dV = F^T dV~                        (5)

Example
-------
All features are 1. ``E`` adds the first two of three keys and ``F`` their values, so the similarity is 2 and the output
6. With ``E = [1, -2, 0]`` instead, every similarity would be ``1 - 2 = -1``.

>>> import numpy as np
>>> x, v = np.zeros((3, 1)), np.array([[1.0], [5.0], [9.0]])
>>> out, saved = forward(x, x, v, np.array([[1.0, 1.0, 0.0]]), np.array([[1.0, 1.0, 0.0]]), eps=0.0)
>>> print(out.T)  # 2 (1 + 5) / 2
[[6. 6. 6.]]
>>> print(backward(np.ones((3, 1)), saved).v.T)
[[3. 3. 0.]]
>>> print(negative_similarity_fraction(x, x, np.array([[1.0, -2.0, 0.0]])))
1.0

References
----------
Merali (2020), "Linearizing Transformers", last section.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from linattn_ref.attention.exponential import features
from linattn_ref.attention.features.feature_maps import FeatureMap, check_linear, elu_plus_one
from linattn_ref.attention.linformer import Gradients
from linattn_ref.attention.linformer import look as look_at_e
from linattn_ref.attention.parts.heads import product_for
from linattn_ref.attention.parts.masks import divide, shown
from linattn_ref.op import Array, Bool, Float, op

__all__ = ["Gradients", "Saved", "backward", "forward", "negative_similarity_fraction"]


class Saved(NamedTuple):
    """What the backward pass needs: ``O(N + L + R)`` rows."""

    phi_q: Float[Array, "... N C"]
    phi_k: Float[Array, "... L C"]  # masked rows 0
    v: Float[Array, "... L M"]  # masked rows 0
    e: Float[Array, "#... R L"]
    f: Float[Array, "#... R L"]
    mixed_k: Float[Array, "... R C"]
    mixed_v: Float[Array, "... R M"]
    s: Float[Array, "... C M"]
    z: Float[Array, "... C 1"]
    out: Float[Array, "... N M"]
    d: Float[Array, "... N 1"]
    features: tuple[FeatureMap, Any, Any]  # phi, and what its gradient needs of q and of k
    key_mask: Bool[Array, "... L"] | None


def look(**arguments: Any) -> None:
    look_at_e(**arguments)
    check_linear(**arguments)


@op(look=look)
def forward(
    q: Float[Array, "... N D"],
    k: Float[Array, "... L D"],
    v: Float[Array, "... L M"],
    e: Float[Array, "#... R L"],
    f: Float[Array, "#... R L"],
    *,
    feature_map: FeatureMap = elu_plus_one,
    key_mask: Bool[Array, "... L"] | None = None,
    eps: float = 1e-6,
) -> tuple[Array, Saved]:
    """Equations (1)-(3). A masked key's rows of ``phi(K)`` and ``V`` are 0 before they are mixed."""
    k, v = shown(k, key_mask), shown(v, key_mask)
    (phi_q, of_q), (phi_k, of_k) = features(feature_map, q, k, key_mask)
    mixed_k, mixed_v = e @ phi_k, f @ v  # (1)
    s, z = mixed_k.mT @ mixed_v, mixed_k.sum(axis=-2)[..., None]  # (2)
    d = phi_q @ z + eps
    out = divide(phi_q @ s, d)  # (3)
    return out, Saved(phi_q, phi_k, v, e, f, mixed_k, mixed_v, s, z, out, d, (feature_map, of_q, of_k), key_mask)


@op
def backward(d_out: Float[Array, "... N M"], saved: Saved) -> Gradients:
    """Linear attention's (5)-(9), then (4) and (5) here."""
    phi_q, phi_k, v, e, f, mixed_k, mixed_v, s, z, out, d, (feature_map, of_q, of_k), key_mask = saved
    d_n = divide(d_out, d)  # linear (5)
    d_d = -(d_n * out).sum(axis=-1, keepdims=True)  # linear (5)
    d_phi_q = d_n @ s.mT + d_d @ z.mT  # linear (6)
    d_s, d_z = phi_q.mT @ d_n, phi_q.mT @ d_d  # linear (7)
    d_mixed_k, d_mixed_v = mixed_v @ d_s.mT + d_z.mT, mixed_k @ d_s  # linear (8), (9)
    d_e, d_f = product_for(e.shape, d_mixed_k, phi_k), product_for(f.shape, d_mixed_v, v)  # (4)
    d_phi_k, d_v = shown(e.mT @ d_mixed_k, key_mask), shown(f.mT @ d_mixed_v, key_mask)  # (5)
    return Gradients(feature_map.backward(d_phi_q, of_q), feature_map.backward(d_phi_k, of_k), d_v, d_e, d_f)


@op(look=look)
def negative_similarity_fraction(
    q: Float[Array, "... N D"],
    k: Float[Array, "... L D"],
    e: Float[Array, "#... R L"],
    feature_map: FeatureMap = elu_plus_one,
    *,
    key_mask: Bool[Array, "... L"] | None = None,
) -> float:
    """The share of the similarities ``phi(q_i)^T (E phi(K))_r``, over all ``i`` and ``r``, that are below 0.

    In linear attention it is 0, up to the rounding of similarities that are 0, for every map with
    ``FeatureMap.positive``; so it is here for an ``e`` without negative entries, such as ``linformer.mean_pool``.
    """
    (phi_q, _), (phi_k, _) = features(feature_map, q, shown(k, key_mask), key_mask)
    return float((phi_q @ (e @ phi_k).mT < 0).mean())  # positive scales do not change a sign
