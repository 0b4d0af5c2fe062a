"""Linformer (Wang et al. 2020): softmax attention over ``R`` mixed keys instead of ``L`` single ones.

    K~ = E K,   V~ = F V                                     (1)  E, F (R, L)
    O = softmax(scale Q K~^T) V~                             (2)  (N, M)

The scores are ``(N, R)`` instead of ``(N, L)``; mixing takes ``O(L R (D + M))`` more. ``softmax(scale Q K~^T) F`` has
rank ``R`` at most. A trained ``P`` may be close to some matrix of low rank, but not to one of this form with fixed
``E`` and ``F``: the best one of rank ``R`` would need an ``E`` and ``F`` of its own for each text. A network has to be
trained with ``E`` and ``F``, which are learned; their ``L`` columns fix the sequence length.

:Time: ``O((N + L) R max(D, M))``
:Memory: ``O(N R + R (D + M))``
:Causal: no
:Exact: no
:Gives: softmax attention of low rank, with learned projections

The gradient, by hand
---------------------
(2) is softmax attention, whose backward pass returns ``dQ``, ``dK~`` and ``dV~``. From (1),

    dE = dK~ K^T,    dF = dV~ V^T                            (3)
    dK = E^T dK~,    dV = F^T dV~                            (4)

and where one ``E`` serves several heads or examples, its gradients are summed over them.

Why it cannot be causal
-----------------------
Every row of ``E K`` mixes all positions, so each query would see the future through every mixed key.

Example
-------
Four keys that score alike, mixed into two by mean pooling: the query gets the mean of both means. The gradient of ``F``
shows what a larger weight of each value would do.

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

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention import softmax
from linattn_ref.attention.linformer_projections import Projection, distinct_gradients, draw_projections, mean_pool
from linattn_ref.attention.parts.heads import product_for
from linattn_ref.attention.parts.masks import shown
from linattn_ref.attention.parts.max_pool import forward as max_pool
from linattn_ref.attention.parts.strided_convolution import forward as convolution
from linattn_ref.op import Array, Bool, Float, op

__all__ = ["Gradients", "Projection", "Saved", "backward", "convolution", "distinct_gradients", "draw_projections"]
__all__ += ["forward", "matrix", "max_pool", "mean_pool"]


class Saved(NamedTuple):
    """What the backward pass needs: the inputs and ``O(N + R)`` rows per head."""

    k: Float[Array, "... L D"]  # masked rows 0
    v: Float[Array, "... L M"]  # masked rows 0
    e: Float[Array, "#... R L"]
    f: Float[Array, "#... R L"]
    key_mask: Bool[Array, "... L"] | None
    row_mask: Bool[Array, "#... R"] | None
    attention: Any  # softmax attention's, over the R mixed keys


class Gradients(NamedTuple):
    q: Float[Array, "... N D"]
    k: Float[Array, "... L D"]
    v: Float[Array, "... L M"]
    e: Float[Array, "#... R L"]
    f: Float[Array, "#... R L"]


def look(k: Any, e: Any, causal: bool = False, **_: Any) -> None:
    if causal:
        raise ValueError(
            "causal: not defined for Linformer; every row of E K mixes all positions, so a query would see the future"
        )
    if e.shape[-2] > k.shape[-2]:
        raise ValueError(f"e: expected R <= L = {k.shape[-2]}, got R = {e.shape[-2]}")


@op(look=look)
def forward(
    q: Float[Array, "... N D"],
    k: Float[Array, "... L D"],
    v: Float[Array, "... L M"],
    e: Float[Array, "#... R L"],
    f: Float[Array, "#... R L"],
    *,
    causal: bool = False,
    key_mask: Bool[Array, "... L"] | None = None,
    row_mask: Bool[Array, "#... R"] | None = None,
    scale: float | None = None,
) -> tuple[Array, Saved]:
    """Equations (1) and (2). A masked key is 0 before it is mixed.

    ``row_mask`` says which rows of ``e`` and ``f`` are in use, where heads with a different ``R`` are padded to the
    largest.
    """
    k, v, rows = shown(k, key_mask), shown(v, key_mask), for_all_heads(row_mask, k)
    out, attention = softmax.forward(q, e @ k, f @ v, key_mask=rows, scale=scale)  # (1), (2)
    return out, Saved(k, v, e, f, key_mask, row_mask, attention)


@op
def backward(d_out: Float[Array, "... N M"], saved: Saved) -> Gradients:
    """Equations (3) and (4)."""
    k, v, e, f, key_mask, row_mask, attention = saved
    d_q, d_mixed_k, d_mixed_v = softmax.backward(d_out, attention)
    d_e, d_f = product_for(e.shape, d_mixed_k, k), product_for(f.shape, d_mixed_v, v)  # (3)
    d_k, d_v = shown(e, row_mask).mT @ d_mixed_k, shown(f, row_mask).mT @ d_mixed_v  # (4)
    return Gradients(d_q, shown(d_k, key_mask), shown(d_v, key_mask), d_e, d_f)


@op(look=look)
def matrix(
    q: Float[Array, "... N D"],
    k: Float[Array, "... L D"],
    e: Float[Array, "#... R L"],
    *,
    key_mask: Bool[Array, "... L"] | None = None,
    row_mask: Bool[Array, "#... R"] | None = None,
    scale: float | None = None,
) -> Array:
    """The context mapping matrix of the mixed keys, ``(..., N, R)``: ``out == matrix @ (f @ v)``."""
    return softmax.matrix(q, e @ shown(k, key_mask), key_mask=for_all_heads(row_mask, k), scale=scale)  # (1), (2)


def for_all_heads(row_mask: Array | None, k: Array) -> Array | None:
    """The key mask of the mixed keys, ``(..., R)``."""
    return None if row_mask is None else np.broadcast_to(row_mask, (*k.shape[:-2], row_mask.shape[-1]))
