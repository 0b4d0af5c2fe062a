"""Longformer (Beltagy et al. 2020): a sliding window, and a few global tokens that see all and are seen by all.

Let ``W_i`` be the keys in the window of query ``i`` (``|i - j| <= window * dilation`` in steps of ``dilation``) and
``G`` the global tokens. For a query that is not global

    P_ij = exp(scale q_i . k_j) / sum_{l in W_i u G} exp(scale q_i . k_l)      (1)  j in W_i u G
    o_i = sum_{j in W_i u G} P_ij v_j                                          (2)

one softmax over the union, so that a key that is both in the window and global counts once. A global query has
projections of its own, and sees everything:

    o_g = softmax_j(scale q_global_g . k_global_j) v_global                    (3)  all j

``O(N (2 window + 1 + G))`` pairs instead of ``N^2``. As a graph it is a star: with one global token every pair of
tokens is at most two steps apart (``linattn_ref.theory.pattern_graphs``).

:Time: ``O(N (window + G) max(D, M))``
:Memory: ``O(N M)``
:Causal: no
:Exact: over its pairs
:Gives: softmax attention over a window and a few global tokens

Two parts, one softmax
----------------------
The pairs are kept as two disjoint parts, the window without ``G`` and the columns ``G``. With the output ``o_W`` and
the log-sum-exp ``lse_W`` of the one, ``o_G`` and ``lse_G`` of the other, the softmax over both is

    lse = log(exp(lse_W) + exp(lse_G)),   o = exp(lse_W - lse) o_W + exp(lse_G - lse) o_G     (4)

since ``exp(lse_W) o_W`` is the sum of ``exp(a_j) v_j`` over ``W``. This is exact, in any order and number of parts.

The gradient, by hand
---------------------
(1) and (2) are softmax attention, with pairs that are left out. Its backward pass holds pair by pair once ``P`` is
normalised by the ``lse`` of the whole row, and no pair outside ``W_i u G`` has a gradient:

    P_ij = exp(scale q_i . k_j - lse_i)                                        (5)
    dA_ij = P_ij (dO_i . v_j - dO_i . o_i)                                     (6)
    dQ_i = scale sum_j dA_ij k_j,  dK_j = scale sum_i dA_ij q_i,  dV_j = sum_i P_ij dO_i      (7)

The sums over ``i`` leave the global queries out. Those are softmax attention of ``G`` queries, which gives

    dq_global, dk_global, dv_global   of (3)                                   (8)

What is not used has gradient 0: rows of ``q`` that are global, rows of ``q_global`` that are not.

Example
-------
Six tokens that all score alike, a window of one on each side, and the last token is global. Its own row has the mean of
all ``v_global``; of the others, row ``i`` has the mean of ``v`` over its neighbours and the last token.

>>> x, v = np.zeros((6, 2)), np.arange(6.0)[:, None]
>>> out, saved = forward(x, x, v, x, x, 10 * v, window=1, global_tokens=[-1])
>>> out.T
array([[ 2.  ,  2.  ,  2.75,  3.5 ,  4.  , 25.  ]])
>>> backward(np.ones((6, 1)), saved).v_global.T.round(2)
array([[0.17, 0.17, 0.17, 0.17, 0.17, 0.17]])

References
----------
Beltagy et al. (2020), "Longformer: the long-document Transformer", section 3.1, "Linear projections for global
attention" and Figure 2.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from linattn_ref.attention import softmax
from linattn_ref.attention.sparse import pattern_softmax, patterns
from linattn_ref.attention.sparse.indices import distinct_indices
from linattn_ref.attention.sparse.part import KEPT, Pattern, band, columns
from linattn_ref.attention.sparse.patterns import look_local as look
from linattn_ref.op import Array, Bool, Float, op

__all__ = ["Gradients", "Saved", "backward", "forward", "parts_of", "pattern"]


class Saved(NamedTuple):
    """What the backward pass needs: two softmax attentions."""

    ordinary: Any  # pattern_softmax's, of (1) and (2); global rows see nothing
    tokens: tuple[int, ...]  # the global ones, ascending, each once
    rows: Any  # softmax's, of (3); None if there are no global tokens


class Gradients(NamedTuple):
    q: Float[Array, "... N D"]  # 0 in global rows
    k: Float[Array, "... N D"]
    v: Float[Array, "... N M"]
    q_global: Float[Array, "... N D"]  # 0 in all other rows
    k_global: Float[Array, "... N D"]
    v_global: Float[Array, "... N M"]


@op(look=look)
def forward(
    q: Float[Array, "... N D"],
    k: Float[Array, "... N D"],
    v: Float[Array, "... N M"],
    q_global: Float[Array, "... N D"],
    k_global: Float[Array, "... N D"],
    v_global: Float[Array, "... N M"],
    *,
    window: int,
    global_tokens: ArrayLike,
    dilation: int = 1,
    key_mask: Bool[Array, "... N"] | None = None,
    scale: float | None = None,
) -> tuple[Array, Saved]:
    """Equations (1)-(3).

    ``window`` is the number of keys on each side of a query, and ``dilation`` the step from one to the next.
    ``global_tokens`` are positions, the same for all leading axes. Negative ones are counted from the end, one given
    twice is one, and there may be none. Of ``q_global`` their rows are used, of the other global arrays all rows.
    """
    tokens = distinct_indices("global_tokens", global_tokens, q.shape[-2])  # (G,)
    seen = parts_of(q.shape[-2], window=window, global_tokens=tokens, dilation=dilation)
    out, ordinary = pattern_softmax.forward(q, k, v, seen, key_mask=key_mask, scale=scale)  # (1), (2)
    rows = None
    if tokens.size:
        whole = {"key_mask": key_mask, "scale": scale}
        out[..., tokens, :], rows = softmax.forward(q_global[..., tokens, :], k_global, v_global, **whole)  # (3)
    return out, Saved(ordinary, tuple(tokens.tolist()), rows)


@op
def backward(d_out: Float[Array, "... N M"], saved: Saved) -> Gradients:
    """Equations (5)-(8)."""
    ordinary, tokens, rows = saved
    is_global = (..., [*tokens], slice(None))
    # (5), (6) are made on the way, pair by pair
    d_q, d_k, d_v = pattern_softmax.backward(d_out, ordinary)  # (7)
    d_q_global, d_k_global, d_v_global = np.zeros_like(d_q), np.zeros_like(d_k), np.zeros_like(d_v)
    if rows is not None:
        d_q_global[is_global], d_k_global, d_v_global = softmax.backward(d_out[is_global], rows)  # (8)
    return Gradients(d_q, d_k, d_v, d_q_global, d_k_global, d_v_global)


@op(look=look)
def parts_of(n: int, *, window: int, global_tokens: ArrayLike, dilation: int = 1) -> Pattern:
    """The keys of ordinary queries as two disjoint parts: the window without global tokens, and the global tokens.

    Global queries see nothing here; their rows are those of (3).
    """
    return _parts(n, window, dilation, tuple(distinct_indices("global_tokens", global_tokens, n).tolist()))


@lru_cache(KEPT)
def _parts(n: int, window: int, dilation: int, tokens: tuple[int, ...]) -> Pattern:
    near = band(n, n, -window, window, dilation=dilation, without=tokens, blind=tokens)
    return near, columns(n, n, tokens, blind=tokens)  # joined by online softmax, which comes to (4)


pattern = patterns.longformer
