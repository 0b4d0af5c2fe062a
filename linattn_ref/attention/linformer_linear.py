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
saves less than half of the whole. ``E`` and ``F`` are ``2 R L`` parameters more. Either way cost is linear in the
length: Linformer's mixing removed a square, and here there was none left.

What it loses
-------------
The similarity of query ``i`` and mixed key ``r`` is ``phi(q_i)^T (E phi(K))_r``. With entries of ``E`` of either sign
it can be negative where ``phi`` is positive (:func:`negative_similarity_fraction`): the output is no average of values
any more, and the denominator may come out negative or close to 0. Nor can it be causal, for the reason in
``linformer.py``.

:Time: ``O(N C M + L R (C + M))``
:Memory: ``O((N + L + R) C + (N + R) M)``
:Causal: no
:Exact: no
:Gives: linear attention over mixed keys, for comparison

The gradient, by hand
---------------------
(2) and (3) are linear attention over the ``R`` mixed keys, whose backward pass gives ``dK~`` and ``dV~``; from (1), as
for Linformer,

    dE = dK~ phi(K)^T,   dF = dV~ V^T                        (4)
    dphi(K) = E^T dK~,   dV = F^T dV~                        (5)

Example
-------
All similarities are 1. ``E`` adds the first two of three keys, and ``F`` their values: the sum of two values, over a
weight of two. Of an ``E`` with both signs the denominator is 0 but for ``eps``.

>>> import numpy as np
>>> x, v = np.zeros((3, 1)), np.array([[1.0], [5.0], [9.0]])
>>> out, saved = forward(x, x, v, np.array([[1.0, 1.0, 0.0]]), np.array([[1.0, 1.0, 0.0]]), eps=0.0)
>>> print(out.T)  # 2 (1 + 5) / 2
[[6. 6. 6.]]
>>> print(backward(np.ones((3, 1)), saved).v.T)
[[3. 3. 0.]]
>>> print(negative_similarity_fraction(x, x, np.array([[1.0, -2.0, 0.0]])))
1.0

No ``kernels``: there is no loop. All of it is products of whole matrices, which are NumPy's.

References
----------
Merali (2020), "Linearizing Transformers", last section.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from linattn_ref.attention.arguments import Array, Mask, backward_check, check_qk, check_qkv
from linattn_ref.attention.door import door
from linattn_ref.attention.exponents import Features, features, features_backward
from linattn_ref.attention.feature_maps import FeatureMap, check_feature_map, elu_plus_one
from linattn_ref.attention.fields import documented
from linattn_ref.attention.linear_checks import check_eps
from linattn_ref.attention.linear_sums import add_up, add_up_backward, read, read_backward
from linattn_ref.attention.linformer import product_for
from linattn_ref.attention.linformer_checks import check_projection, check_projections
from linattn_ref.attention.masks import zero_masked
from linattn_ref.kernels.reference.buffers import into

__all__ = ["Gradients", "Saved", "backward", "forward", "negative_similarity_fraction"]

EPS = 1e-6  # unless given, as in linear attention


@documented
class Saved(NamedTuple):
    """What the backward pass needs: ``O(N + L + R)`` rows."""

    phi: Features  # of queries (..., N, C) and keys (..., L, C)
    v: Array  # (..., L, M), masked rows 0
    e: Array  # (R, L) or (..., R, L)
    f: Array  # (R, L) or (..., R, L)
    mixed_k: Array  # (..., R, C)
    mixed_v: Array  # (..., R, M)
    s: Array  # (..., C, M)
    z: Array  # (..., C)
    out: Array  # (..., N, M)
    denominator: Array  # (..., N)


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D)
    v: Array  # (..., L, M)
    e: Array  # like e
    f: Array  # like f


def _check_forward(
    q: Array, k: Array, v: Array, e: Array, f: Array, *, key_mask: Mask | None = None, **options: Any
) -> None:
    check_qkv(q, k, v, key_mask=key_mask, out=options.get("out"))
    check_projections(e, f, k)
    check_eps(options.get("eps", EPS), options.get("feature_map", elu_plus_one))


@door(_check_forward)
def forward(
    q: Array,
    k: Array,
    v: Array,
    e: Array,
    f: Array,
    *,
    feature_map: FeatureMap = elu_plus_one,
    key_mask: Mask | None = None,
    eps: float = EPS,
    out: Array | None = None,
) -> tuple[Array, Saved]:
    """Linear attention over mixed keys and values.

    Parameters
    ----------
    q, k, v, key_mask, eps, out
        The common arguments: ``help(linattn_ref.attention)``. A masked key's rows of ``phi(K)`` and ``V`` are 0 before
        the projection; ``eps`` must be 0 with an exponential feature map.
    e, f : ndarray ``(R, L)`` or ``(..., R, L)``, ``R <= L``
        Projections of the features of the keys, and of the values; as in ``linformer.forward``.
    feature_map : FeatureMap
    """
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    phi = features(q, k, feature_map, key_mask)
    mixed_k, mixed_v = e @ phi.k, f @ v  # (1)  (..., R, C), (..., R, M)
    s, z = add_up(mixed_k, mixed_v)  # (2)  (..., C, M), (..., C)
    result, denominator = read(phi.q, s, z, eps)  # (3)
    out = into(out, result)
    return out, Saved(phi, v, e, f, mixed_k, mixed_v, s, z, out, denominator)


@door(backward_check(Saved))
def backward(d_out: Array, saved: Saved) -> Gradients:
    """Gradients of :func:`forward`, equations (4) and (5)."""
    phi, v, e, f, mixed_k, mixed_v, s, z, out, denominator = saved
    d_phi_q, d_s, d_z = read_backward(d_out, phi.q, out, denominator, s, z)
    d_mixed_k, d_mixed_v = add_up_backward(d_s, d_z, mixed_k, mixed_v)  # (..., R, C), (..., R, M)
    d_e = product_for(e.shape, d_mixed_k, phi.k)  # (4)
    d_f = product_for(f.shape, d_mixed_v, v)  # (4)
    d_phi_k = e.swapaxes(-1, -2) @ d_mixed_k  # (5)  (..., L, C)
    d_v = zero_masked(f.swapaxes(-1, -2) @ d_mixed_v, phi.key_mask)  # (5)  (..., L, M)
    d_q, d_k = features_backward(d_phi_q, d_phi_k, phi)
    return Gradients(d_q, d_k, d_v, d_e, d_f)


def _check_similarity(
    q: Array, k: Array, e: Array, feature_map: FeatureMap = elu_plus_one, *, key_mask: Mask | None = None
) -> None:
    check_qk(q, k, key_mask=key_mask)
    check_projection("e", e, k)
    check_feature_map(feature_map)


@door(_check_similarity)
def negative_similarity_fraction(
    q: Array, k: Array, e: Array, feature_map: FeatureMap = elu_plus_one, *, key_mask: Mask | None = None
) -> float:
    """The share of the similarities ``phi(q_i)^T (E phi(K))_r``, over all ``i`` and ``r``, that are below 0.

    In linear attention it is 0 for every map with ``FeatureMap.positive``; so it is here for an ``e`` without negative
    entries, such as ``linformer.mean_pool``.
    """
    phi = features(q, zero_masked(k, key_mask), feature_map, key_mask)
    similarity = phi.q @ (e @ phi.k).swapaxes(-1, -2)  # (..., N, R); its positive scales do not change a sign
    return float((similarity < 0).mean())
