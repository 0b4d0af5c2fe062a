"""Softmax attention over an allowed set of pairs: what windows, blocks, BigBird and Sparse Transformers have in common.

Query ``i`` may look at the keys in ``S_i``, a few of the ``L``:

    A_ij = scale q_i . k_j                                   (1)  j in S_i
    lse_i = log sum_{j in S_i} exp(A_ij)                     (2)
    P_ij = exp(A_ij - lse_i)                                 (3)  0 where j is not in S_i
    o_i = sum_{j in S_i} P_ij v_j                            (4)

A mechanism only defines ``S_i``. It writes all of these sets down in a few numbers per query, a *pattern*
(`part`), which names the pairs tile by tile: some queries, and the keys that any of them sees. Online softmax
(`online_softmax`) goes on from tile to tile, so time is proportional to the number of pairs, and nothing has ``N L``
numbers. ``S_i`` is a set: a key that is in it for two reasons counts once.

The gradient, by hand
---------------------
It is that of softmax attention (`softmax`, equations (4)-(8)), with pairs left out. For a pair in the pattern the
weights are found again from (3), and ``sum_l P_il dP_il = dO_i . o_i``, since ``dP_ij = dO_i . v_j``:

    dV_j = sum_i P_ij dO_i                                   (5)  over the queries that have j in S_i
    dA_ij = P_ij (dO_i . v_j - dO_i . o_i)                   (6)
    dQ_i = scale sum_{j in S_i} dA_ij k_j                    (7)
    dK_j = scale sum_i dA_ij q_i                             (8)  as in (5)

``lse`` and ``o`` in these are those of the whole row. Each tile then adds what its own pairs contribute.

Example
-------
Of three keys that score alike, query 0 sees the first two and query 1 the last one.

>>> from linattn_ref.attention.sparse.part import interval
>>> pattern = (interval(low=[0, 2], high=[2, 3], n_keys=3),)
>>> q, k, v = np.zeros((2, 4)), np.zeros((3, 4)), np.array([[1.0], [3.0], [5.0]])
>>> out, saved = forward(q, k, v, pattern)
>>> out
array([[2.],
       [5.]])
>>> backward(np.ones((2, 1)), saved).v
array([[0.5],
       [0.5],
       [1. ]])

References
----------
Milakov and Gimelshein (2018), "Online normalizer calculation for softmax", section 3.1.
Dao et al. (2022), "FlashAttention", Algorithm 5 (block-sparse).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.parts.masks import divide, mix, scores, shown
from linattn_ref.attention.softmax import Gradients
from linattn_ref.attention.sparse.part import Indices, Part, Pattern, tiles_of
from linattn_ref.op import Array, Bool, Float, op
from linattn_ref.op.shapes import name_of

__all__ = ["Gradients", "Saved", "backward", "forward"]


class Saved(NamedTuple):
    """What the backward pass needs: the inputs, the output, two numbers per row, and the pattern."""

    q: Float[Array, "... N D"]
    k: Float[Array, "... L D"]  # masked rows 0
    v: Float[Array, "... L M"]  # masked rows 0
    out: Float[Array, "... N M"]
    m: Float[Array, "... N 1"]  # the largest score of the row
    s: Float[Array, "... N 1"]  # the sum of exp(A - m)
    key_mask: Bool[Array, "... L"] | None
    pattern: Pattern
    scale: float

    @property
    def lse(self) -> Array:
        """Equation (2); of a row that sees nothing, the lowest number."""
        return self.m + np.log(np.where(self.s == 0, self.s.dtype.type(1), self.s))  # (2)


def look(q: Any, k: Any, seen: Any, **_: Any) -> None:
    """``seen`` is what a mechanism's ``parts_of`` returns, for ``N`` queries and ``L`` keys."""
    if not isinstance(seen, tuple) or not all(isinstance(part, Part) for part in seen):
        raise TypeError(
            f"seen: expected what a mechanism's parts_of returns, a tuple of {Part.__module__}.Part,"
            f" got {name_of(type(seen))}"
        )
    n, n_keys = q.shape[-2], k.shape[-2]
    for part in seen:
        if (len(part.queries), part.n_keys) != (n, n_keys):
            raise ValueError(
                f"seen: expected one for N = {n} and L = {n_keys},"
                f" got one for N = {len(part.queries)} and L = {part.n_keys}"
            )


@op(look=look)
def forward(
    q: Float[Array, "... N D"],
    k: Float[Array, "... L D"],
    v: Float[Array, "... L M"],
    seen: Pattern,
    *,
    key_mask: Bool[Array, "... L"] | None = None,
    scale: float | None = None,
) -> tuple[Array, Saved]:
    """Equations (1)-(4) over the pairs that are ``seen``, tile by tile."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    k, v = shown(k, key_mask), shown(v, key_mask)
    m = np.full_like(q[..., :1], np.finfo(q.dtype).min)
    s, o = np.zeros_like(m), np.zeros_like(v, shape=(*q.shape[:-1], v.shape[-1]))
    for queries, keys, a in scores_by_tile(q, k, key_mask, seen, scale):
        i = np.s_[..., queries, :]
        before, m[i] = m[i], np.maximum(m[i], a.max(axis=-1, keepdims=True))  # online_softmax (1)
        decay, weights = np.exp(before - m[i]), np.exp(a - m[i])
        s[i] = decay * s[i] + weights.sum(axis=-1, keepdims=True)  # online_softmax (2)
        o[i] = np.where(decay == 0, decay, decay * o[i]) + mix(weights, rows(v, keys))  # online_softmax (3)
    out = divide(o, s)  # (4)
    return out, Saved(q, k, v, out, m, s, key_mask, seen, scale)


@op
def backward(d_out: Float[Array, "... N M"], saved: Saved) -> Gradients:
    """Equations (5)-(8)."""
    q, k, v, out, m, s, key_mask, seen, scale = saved
    d_q, d_k, d_v = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    r = (d_out * out).sum(axis=-1, keepdims=True)  # dO_i . o_i
    for queries, keys, a in scores_by_tile(q, k, key_mask, seen, scale):
        i, j = np.s_[..., queries, :], np.s_[..., keys, :]
        p = np.where(np.isneginf(a), q.dtype.type(0), divide(np.exp(a - m[i]), s[i]))  # (3)
        g = rows(d_out, queries)
        d_a = np.where(p == 0, p, p * (g @ rows(v, keys).mT - r[i]))  # (6), where there is weight
        d_v[j] += mix(p.mT, g)  # (5)
        d_q[i] += scale * mix(d_a, rows(k, keys))  # (7)
        d_k[j] += scale * mix(d_a.mT, rows(q, queries))  # (8)
    return Gradients(d_q, d_k, d_v)


def scores_by_tile(
    q: Array, k: Array, key_mask: Array | None, seen: Pattern, scale: float
) -> Iterator[tuple[Indices, Indices, Array]]:
    """The queries of each tile, its keys, and their ``A_ij``, -inf where the query may not look."""
    for queries, keys, allowed in tiles_of(seen):
        a = scores(rows(q, queries), rows(k, keys), scale)  # (1)
        may_look = np.logical_and(allowed, True if key_mask is None else key_mask[..., None, keys])
        yield queries, keys, np.where(may_look, a, q.dtype.type(-np.inf))


def rows(x: Array, numbers: Indices) -> Array:
    """Some rows of ``x (..., N, W)``, laid out in memory alike for any leading axes, so that products are alike."""
    return np.take(x, numbers, axis=-2)
