"""Longformer (Beltagy et al. 2020): a sliding window, and a few global tokens that see all and are seen by all.

Let ``W_i`` be the keys in the window of query ``i`` (``|i - j| <= window * dilation`` in steps of ``dilation``) and
``G`` the global tokens. For a query that is not global

    P_ij = exp(scale q_i . k_j) / sum_{l in W_i u G} exp(scale q_i . k_l)      (1)  j in W_i u G
    o_i = sum_{j in W_i u G} P_ij v_j                                          (2)

one softmax over the union, so that a key that is both in the window and global counts once. A global query has
projections of its own, and sees everything:

    o_g = softmax_j(scale q_global_g . k_global_j) v_global                    (3)  all j

``O(N (2 window + 1 + G))`` pairs instead of ``N^2``. As a graph it is a star: with one global token every pair of
tokens is two steps apart (``linattn_ref.theory.pattern_graphs``).

:Time: ``O(N (window + G) max(D, M))``
:Memory: ``O(N M)``
:Causal: no
:Exact: over its pairs
:Gives: softmax attention over a window and a few global tokens

Two parts, one softmax
----------------------
The pairs are kept as two disjoint parts, the window without ``G`` and the columns ``G``. With the output ``o_W`` and
the log-sum-exp ``s_W`` of the one, ``o_G`` and ``s_G`` of the other, the softmax over both is

    s = log(exp(s_W) + exp(s_G)),   o = exp(s_W - s) o_W + exp(s_G - s) o_G    (4)

since ``exp(s_W) o_W`` is the sum of ``exp(a_j) v_j`` over ``W``. This is exact, in any order and number of parts.

The gradient, by hand
---------------------
(1) and (2) are softmax attention, with pairs that are left out. Its backward pass holds pair by pair once ``P`` is
normalised by the ``s`` of the whole row, and no pair outside ``W_i u G`` has a gradient:

    P_ij = exp(scale q_i . k_j - s_i)                                          (5)
    dA_ij = P_ij (dO_i . v_j - dO_i . o_i)                                     (6)
    dQ_i = scale sum_j dA_ij k_j,  dK_j = scale sum_i dA_ij q_i,  dV_j = sum_i P_ij dO_i      (7)

The sums over ``i`` leave the global queries out. Those are (3), softmax attention of ``G`` queries, and give the
gradients of ``q_global``, ``k_global`` and ``v_global``. What is not used has gradient 0: rows of ``q`` that are
global, rows of ``q_global`` that are not.

Example
-------
Six tokens that all score alike, a window of one on each side, and the last token is global. Its own row has the mean of
all ``v_global``; of the others, row ``i`` has the mean of ``v`` over its neighbours and the last token.

>>> import numpy as np
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

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from linattn_ref.attention import pattern_softmax, patterns, softmax
from linattn_ref.attention.arguments import Array, Mask, backward_check, check_array, check_shape, check_sizes
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.pattern_checks import check_forward, check_square, distinct_indices
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.attention.rooms import PatternSoftmaxRoom, SoftmaxRoom
from linattn_ref.kernels import parts, reference

__all__ = ["Gradients", "Saved", "backward", "forward", "parts_of", "pattern"]


class Room(PatternSoftmaxRoom, SoftmaxRoom, Protocol):
    """Where Longformer runs: ordinary rows in the one kernel, global ones in the other."""


@documented
class Saved(NamedTuple):
    """What the backward pass needs: two softmax attentions."""

    ordinary: pattern_softmax.Saved  # of (1) and (2) over the pattern; its out is the whole output, global rows too
    tokens: tuple[int, ...]  # the global ones, ascending, each once
    rows: softmax.Saved | None  # of (3); None if there are no global tokens


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    q: Array  # (..., N, D), 0 in global rows
    k: Array  # (..., N, D)
    v: Array  # (..., N, M)
    q_global: Array  # (..., N, D), 0 in all other rows
    k_global: Array  # (..., N, D)
    v_global: Array  # (..., N, M)


def _check_forward(
    q: Array, k: Array, v: Array, q_global: Array, k_global: Array, v_global: Array, **options: Any
) -> None:
    check_forward(q, k, v, **options)
    check_square(q, k)
    for name, x, like, letters in (
        ("q_global", q_global, q, "(..., N, D)"),
        ("k_global", k_global, k, "(..., N, D)"),
        ("v_global", v_global, v, "(..., N, M)"),
    ):
        check_array(name, x, dtype=q.dtype)
        check_shape(name, x, like.shape, letters)


@door(_check_forward)
def forward(
    q: Array,
    k: Array,
    v: Array,
    q_global: Array,
    k_global: Array,
    v_global: Array,
    *,
    window: int,
    global_tokens: ArrayLike,
    dilation: int = 1,
    key_mask: Mask | None = None,
    scale: float | None = None,
    pattern: parts.Pattern | None = None,
    out: Array | None = None,
    kernels: Room = reference,
) -> tuple[Array, Saved]:
    """Longformer attention.

    Parameters
    ----------
    q, k, v, key_mask, scale, pattern, out, kernels
        The common arguments: ``help(linattn_ref.attention)``; ``L = N``.
    q_global, k_global, v_global : ndarray, shapes of ``q``, ``k``, ``v``
        The global projections. Of ``q_global`` the rows of global tokens are used, of the others all rows.
    window : int
        Keys on each side of a query.
    global_tokens : sequence of int or ndarray of integers
        Positions, the same for all leading axes; negative ones are counted from the end, one given twice is one. May
        be empty. Needed beside a ``pattern`` too, for their rows.
    dilation : int
        The step from one key of the window to the next.
    """
    n = q.shape[-2]
    tokens = distinct_indices("global_tokens", global_tokens, n)  # (G,)
    if pattern is None:
        pattern = parts_of(n, window=window, global_tokens=tokens, dilation=dilation)
    out, ordinary = pattern_softmax.forward.unchecked(
        q, k, v, pattern, key_mask=key_mask, scale=scale, out=out, kernels=kernels
    )  # (1), (2)
    rows = None
    if tokens.size:
        out[..., tokens, :], rows = softmax.forward.unchecked(
            q_global[..., tokens, :], k_global, v_global, key_mask=key_mask, scale=scale, kernels=kernels
        )  # (3)  (..., G, M)
    return out, Saved(ordinary, tuple(tokens.tolist()), rows)


@door(backward_check(Saved, "ordinary.out"))
def backward(d_out: Array, saved: Saved) -> Gradients:
    """Gradients of :func:`forward`, equations (5)-(7)."""
    ordinary, kept, rows = saved
    tokens = np.array(kept, np.intp)  # (G,)
    d_ordinary = d_out.copy()
    d_ordinary[..., tokens, :] = 0  # no output of (2) in these rows
    d_q, d_k, d_v = pattern_softmax.backward.unchecked(d_ordinary, ordinary)  # (5)-(7)
    d_q_global = np.zeros_like(d_q)
    if rows is None:
        return Gradients(d_q, d_k, d_v, d_q_global, np.zeros_like(d_k), np.zeros_like(d_v))
    d_rows, d_k_global, d_v_global = softmax.backward.unchecked(d_out[..., tokens, :], rows)
    d_q_global[..., tokens, :] = d_rows  # (..., G, D)
    return Gradients(d_q, d_k, d_v, d_q_global, d_k_global, d_v_global)


@plain_numbers
def parts_of(n: int, *, window: int, global_tokens: ArrayLike, dilation: int = 1) -> parts.Pattern:
    """The keys of ordinary queries as two disjoint parts: the window without global tokens, and the global tokens.

    Global queries are in both like any other; what they get there is thrown away.
    """
    check_sizes(window=window, dilation=dilation)
    tokens = distinct_indices("global_tokens", global_tokens, n)
    near = parts.band(n, n, -window, window, dilation=dilation, without=tokens)
    return near, parts.columns(n, n, tokens)


pattern = patterns.longformer  # which query sees which key, as a boolean matrix
