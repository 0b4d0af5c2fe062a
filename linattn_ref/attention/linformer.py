"""Linformer (Wang et al. 2020): softmax attention over ``R`` mixed keys instead of ``L`` single ones.

    K~ = E K,   V~ = F V                                     (1)  E, F (R, L)
    P~ = softmax(scale Q K~^T)                               (2)  (N, R)
    O = P~ V~                                                (3)

``O(N R)`` time and space where softmax attention takes ``O(N L)``. The context mapping matrix ``P`` is close to low
rank (``linattn_ref.theory.low_rank``), which is why so few mixed keys can do. ``E`` and ``F`` are learned; their ``L``
columns fix the sequence length.

:Time: ``O((N + L) R max(D, M))``
:Memory: ``O(N M + R (D + M))``
:Causal: no
:Exact: no
:Gives: softmax attention of low rank, with learned projections

The gradient, by hand
---------------------
(2) and (3) are softmax attention, whose backward pass gives ``dQ``, ``dK~`` and ``dV~``. From (1),

    dE = dK~ K^T,    dF = dV~ V^T                            (4)
    dK = E^T dK~,    dV = F^T dV~                            (5)

and where one ``E`` serves several heads or examples, its gradients are summed over them.

Why it cannot be causal
-----------------------
Every row of ``E K`` mixes all positions, so each query would see the future through every mixed key.

Example
-------
Four keys that score alike, mixed into two by mean pooling: the query gets the mean of both means. The gradient of ``F``
says what a larger weight of each value would do.

>>> import numpy as np
>>> q, k, v = np.zeros((1, 2)), np.zeros((4, 2)), np.array([[1.0], [3.0], [6.0], [10.0]])
>>> out, saved = forward(q, k, v, mean_pool(2, 4), mean_pool(2, 4))
>>> print(out, saved.attention.v.T)
[[5.]] [[2. 8.]]
>>> print(backward(np.ones((1, 1)), saved).f)
[[0.5 1.5 3.  5. ]
 [0.5 1.5 3.  5. ]]

References
----------
Wang et al. (2020), "Linformer: self-attention with linear complexity", equation (7) and section 4.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from linattn_ref.attention import softmax
from linattn_ref.attention.arguments import Array, Mask, backward_check
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.linformer_checks import check_forward, check_matrix
from linattn_ref.attention.linformer_projections import Projection, distinct_gradients, draw_projections, mean_pool
from linattn_ref.attention.masks import zero_masked
from linattn_ref.attention.max_pool import forward as max_pool
from linattn_ref.attention.rooms import SoftmaxRoom
from linattn_ref.attention.strided_convolution import forward as convolution
from linattn_ref.kernels import reference

__all__ = [
    "Gradients",
    "Projection",
    "Saved",
    "backward",
    "convolution",
    "distinct_gradients",
    "draw_projections",
    "forward",
    "matrix",
    "max_pool",
    "mean_pool",
]


@documented
class Saved(NamedTuple):
    """What the backward pass needs: the inputs and ``O(N + R)`` rows a head."""

    k: Array  # (..., L, D), masked rows 0
    v: Array  # (..., L, M), masked rows 0
    e: Array  # (R, L) or (..., R, L)
    f: Array  # (R, L) or (..., R, L)
    key_mask: Mask | None  # (..., L)
    attention: softmax.Saved  # of softmax attention over the R mixed keys


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D)
    v: Array  # (..., L, M)
    e: Array  # like e
    f: Array  # like f


@door(check_forward)
def forward(
    q: Array,
    k: Array,
    v: Array,
    e: Array,
    f: Array,
    *,
    causal: bool = False,
    key_mask: Mask | None = None,
    row_mask: Mask | None = None,
    scale: float | None = None,
    out: Array | None = None,
    kernels: SoftmaxRoom = reference,
) -> tuple[Array, Saved]:
    """Linformer attention.

    Parameters
    ----------
    q, k, v, key_mask, scale, out, kernels
        The common arguments: ``help(linattn_ref.attention)``. A masked key's rows of ``K`` and ``V`` are 0 before the
        projection.
    e, f : ndarray ``(R, L)`` or ``(..., R, L)``, ``R <= L``
        Projections of keys and values. Leading axes broadcast against those of ``k``: ``(R, L)`` serves every head,
        ``(H, R, L)`` gives each head its own.
    causal : bool
        Must be False: see the top of this file.
    row_mask : ndarray of bool ``(R,)`` or ``(..., R)``, optional
        Which rows of ``e`` and ``f`` are in use, where heads with a different ``R`` are padded to the largest.
    """
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    out, attention = softmax.forward.unchecked(
        q, e @ k, f @ v, key_mask=_for_all_heads(row_mask, k), scale=scale, out=out, kernels=kernels
    )  # (1)-(3)
    return out, Saved(k, v, e, f, key_mask, attention)


@door(backward_check(Saved, "attention.out"))
def backward(d_out: Array, saved: Saved) -> Gradients:
    """Gradients of :func:`forward`, equations (4) and (5)."""
    k, v, e, f, key_mask, attention = saved
    d_q, d_mixed_k, d_mixed_v = softmax.backward.unchecked(d_out, attention)  # (..., N, D), (..., R, D), (..., R, M)
    d_e = product_for(e.shape, d_mixed_k, k)  # (4)  (R, L) or (..., R, L)
    d_f = product_for(f.shape, d_mixed_v, v)  # (4)
    d_k = zero_masked(e.swapaxes(-1, -2) @ d_mixed_k, key_mask)  # (5)  (..., L, D)
    d_v = zero_masked(f.swapaxes(-1, -2) @ d_mixed_v, key_mask)  # (5)  (..., L, M)
    return Gradients(d_q, d_k, d_v, d_e, d_f)


@door(check_matrix)
def matrix(
    q: Array,
    k: Array,
    e: Array,
    *,
    key_mask: Mask | None = None,
    row_mask: Mask | None = None,
    scale: float | None = None,
) -> Array:
    """The context mapping matrix ``P~`` of equation (2), ``(..., N, R)``: ``out == matrix @ (f @ v)``."""
    rows = _for_all_heads(row_mask, k)
    return softmax.matrix.unchecked(q, e @ zero_masked(k, key_mask), key_mask=rows, scale=scale)  # (1), (2)


def _for_all_heads(row_mask: Mask | None, k: Array) -> Mask | None:
    """The key mask of the mixed keys, ``(..., R)``."""
    return None if row_mask is None else np.broadcast_to(row_mask, (*k.shape[:-2], row_mask.shape[-1]))


def product_for(shape: tuple[int, ...], a: Array, b: Array) -> Array:
    """``a b^T`` for ``a (..., R, D)``, ``b (..., L, D)``, summed to ``shape``: over the heads that one matrix serves.

    Those heads stand beside one another along the inner axis, ``(R, H D) (H D, L)``, so that the sum is part of one
    product, and the ``(R, L)`` numbers of each head are never there.
    """
    heads = a.ndim - 2
    sizes = (1,) * (a.ndim - len(shape)) + shape
    served = [axis for axis in range(heads) if sizes[axis] == 1]
    own = [axis for axis in range(heads) if sizes[axis] != 1]
    order = (*own, heads, *served, heads + 1)
    leading = [a.shape[axis] for axis in own]
    a = a.transpose(order).reshape(*leading, a.shape[-2], -1)  # (own heads, R, served heads * D)
    b = b.transpose(order).reshape(*leading, b.shape[-2], -1)  # (own heads, L, served heads * D)
    return (a @ b.swapaxes(-1, -2)).reshape(shape)
