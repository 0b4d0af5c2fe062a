"""Softmax attention without its matrix: one pass over tiles of keys, with a running maximum and a running sum.

For one query, three things are carried from tile to tile: the largest score so far ``m``, the sum ``s`` of
``exp(a - m)``, and the sum ``o`` of the values with the same weights. When a tile raises the maximum from ``m`` to
``m'``, everything summed so far is multiplied by ``exp(m - m')``:

    m' = max(m, max_j a_j),   a_j = scale q . k_j            (1)
    s' = exp(m - m') s + sum_j exp(a_j - m')                 (2)
    o' = exp(m - m') o + sum_j exp(a_j - m') v_j             (3)  (M,)

and after the last tile

    out = o / s,   lse = m + log s                           (4)

:Time: ``O(N L max(D, M))``
:Memory: ``O(N M)``
:Causal: yes
:Exact: yes
:Gives: softmax attention

The gradient, by hand
---------------------
It is that of ``softmax.py``, (4)-(8) there. Let ``G_i`` be the gradient of a loss with respect to ``out_i``. The
weights need not be kept, because they can be recomputed from ``m`` and ``s``, and the row sum ``sum_j dP_ij P_ij`` can
be taken from the output, because ``sum_j P_ij (G_i . v_j) = G_i . out_i``:

    P_ij = exp(a_ij - m_i) / s_i = exp(a_ij - lse_i)         (5)
    r_i = G_i . out_i                                        (6)
    dA_ij = P_ij (G_i . v_j - r_i)                           (7)

Where ``m`` is large, ``lse`` rounds ``log s`` away, which is why ``m`` and ``s`` are both kept.

Two keys, the second four times as similar. In tiles of one key, the first leaves ``m = 0``, ``s = 1`` and ``o = 0``,
and the second ``m = log 4``, ``s = 1/4 + 1`` and ``o = 10``. So the output is 8, and ``lse`` is ``log 5``:

>>> q, k, v = np.array([[1.0]]), np.log([[1.0], [4.0]]), np.array([[0.0], [10.0]])
>>> out, saved = forward(q, k, v)
>>> print(out, np.exp(saved.lse))
[[8.]] [[5.]]

References
----------
Milakov and Gimelshein (2018), "Online normalizer calculation for softmax", Algorithm 3.
Rabe and Staats (2021), "Self-attention does not need O(n^2) memory".
Dao et al. (2022), "FlashAttention", Algorithms 1 and 4.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from linattn_ref.attention.parts.masks import divide, mix, scores, shown, visible
from linattn_ref.attention.softmax import Gradients
from linattn_ref.op import Array, Bool, Float, op

__all__ = ["Gradients", "Saved", "backward", "forward"]


TILE = 128  # keys: scores take N * TILE numbers per head, whatever L is


class Saved(NamedTuple):
    """What the backward pass needs: the inputs, the output and two numbers per row."""

    q: Float[Array, "... N D"]
    k: Float[Array, "... L D"]  # masked rows 0
    v: Float[Array, "... L M"]  # masked rows 0
    out: Float[Array, "... N M"]
    m: Float[Array, "... N 1"]
    s: Float[Array, "... N 1"]
    key_mask: Bool[Array, "... L"] | None
    causal: bool
    scale: float

    @property
    def lse(self) -> Array:
        """Equation (4); of a row that sees nothing, the lowest number."""
        return self.m + np.log(np.where(self.s == 0, self.s.dtype.type(1), self.s))


@op
def forward(
    q: Float[Array, "... N D"],
    k: Float[Array, "... L D"],
    v: Float[Array, "... L M"],
    *,
    causal: bool = False,
    key_mask: Bool[Array, "... L"] | None = None,
    scale: float | None = None,
) -> tuple[Array, Saved]:
    """Equations (1)-(4)."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    k, v = shown(k, key_mask), shown(v, key_mask)
    m = np.full_like(q[..., :1], np.finfo(q.dtype).min)
    s, o = np.zeros_like(m), np.zeros_like(v, shape=(*q.shape[:-1], v.shape[-1]))
    for tile in tiles(k):
        a = tile_of_scores(q, k, key_mask, causal, scale, tile)
        before, m = m, np.maximum(m, a.max(axis=-1, keepdims=True))  # (1)
        decay, weights = np.exp(before - m), np.exp(a - m)
        s = decay * s + weights.sum(axis=-1, keepdims=True)  # (2)
        o = np.where(decay == 0, decay, decay * o) + mix(weights, v[..., tile, :])  # (3), where there is weight left
    out = divide(o, s)  # (4)
    return out, Saved(q, k, v, out, m, s, key_mask, causal, scale)


@op
def backward(d_out: Float[Array, "... N M"], saved: Saved) -> Gradients:
    """Equations (5)-(7), and (4), (7) and (8) of ``softmax.py``."""
    q, k, v, out, m, s, key_mask, causal, scale = saved
    d_q, d_k, d_v = np.zeros_like(q), np.empty_like(k), np.empty_like(v)
    r = (d_out * out).sum(axis=-1, keepdims=True)  # (6)
    for tile in tiles(k):
        a = tile_of_scores(q, k, key_mask, causal, scale, tile)
        p = np.where(np.isneginf(a), q.dtype.type(0), divide(np.exp(a - m), s))  # (5)
        d_a = np.where(p == 0, p, p * (d_out @ v[..., tile, :].mT - r))  # (7), where there is weight
        d_q += scale * mix(d_a, k[..., tile, :])  # softmax (7)
        d_k[..., tile, :] = scale * mix(d_a.mT, q)  # softmax (8)
        d_v[..., tile, :] = mix(p.mT, d_out)  # softmax (4)
    return Gradients(d_q, d_k, d_v)


def tiles(k: Array) -> list[slice]:
    return [slice(start, start + TILE) for start in range(0, k.shape[-2], TILE)]


def tile_of_scores(q: Array, k: Array, key_mask: Array | None, causal: bool, scale: float, tile: slice) -> Array:
    """``a_ij`` of the keys of a tile, -inf where the query may not look."""
    seen = visible(q, k, causal, key_mask, tile)
    return np.where(seen, scores(q, k[..., tile, :], scale), q.dtype.type(-np.inf))
