"""Reformer's LSH attention (Kitaev et al. 2020): a token attends to those that a hash function puts next to it.

Queries and keys are the same vectors ``x_i``, but a key has length 1:

    q_i = x_i,   k_j = x_j / |x_j|                           (1)

In each of ``rounds`` rounds the tokens are sorted by the bucket that a random hash gives them and cut into chunks; a
token meets those of its own chunk and of the one before (`lsh_hashing`). Let ``P_r(i)`` be those
that ``i`` meets in round ``r``, without itself and, if causal, without those after it. In how many rounds do ``i`` and
``j`` meet, and what does round ``r`` alone give?

    c_ij = number of rounds r with j in P_r(i)               (2)
    z_ri = log sum_{j in P_r(i)} exp(scale q_i . k_j) / c_ij (3)
    o_ri = sum_{j in P_r(i)} exp(scale q_i . k_j - z_ri) / c_ij v_j   (4)

The rounds are combined by their log-sum-exp, ``z_i = log sum_r exp z_ri``:

    o_i = sum_r exp(z_ri - z_i) o_ri                         (5)

(The code divides once, at the end. As in `online_softmax` it keeps ``m``, the largest score so far, ``s = exp(z - m)``,
and ``s o`` in the place of ``o``.)

A pair stands in ``c_ij`` rounds with ``1 / c_ij`` in each, so (5) is *one* softmax over all that ``i`` meets in any
round, ``P(i)``; the order and number of rounds only decide who is in it:

    P_ij = exp(scale q_i . k_j - z_i),   o_i = sum_{j in P(i)} P_ij v_j   (6)

Of those that a token meets, the paper lets it attend only to those of its own bucket. Here it attends to all of them,
as in fast-transformers, the code of "Transformers are RNNs".

A vector is always most similar to itself, so a token is not in its own ``P(i)``, unless there is nobody else: then it
attends to itself alone, ``o_i = v_i`` (7). A masked token is no key and no query: its output is 0.

With ``causal=True`` no weight falls on the future. Yet a future token that changes its bucket moves the chunks'
boundaries, so *which* of the past tokens are met does depend on it. Whoever samples token by token has to live with it.

:Time: ``O(rounds N (D buckets + chunk (rounds + max(D, M))))``
:Memory: ``O(N (M + rounds))``
:Causal: yes
:Exact: over the pairs that meet
:Gives: softmax attention to the tokens in similar directions, with queries and keys shared

The gradient, by hand
---------------------
Which tokens meet is held fixed: it is constant but for jumps, and its gradient is 0. Of (6), a softmax, the gradient is
known. With ``d_ij = dO_i . v_j``,

    dV_j = sum_i P_ij dO_i                                   (8)
    dA_ij = P_ij (d_ij - sum_l P_il d_il) = P_ij (d_ij - dO_i . o_i)   (9)
    dQ_i = scale sum_j dA_ij k_j,   dK_j = scale sum_i dA_ij q_i       (10)

where each sum runs over the rounds and their chunks again, a pair with its share ``1 / c_ij`` in each. There is no
term from (5): ``z_ri`` has gone into ``P``. From (1), as the derivative of ``k = x / |x|`` with respect to ``x`` is the
symmetric ``(I - k k^T) / |x|``,

    dX_i = dQ_i + (dK_i - k_i (k_i . dK_i)) / |x_i|          (11)

A zero vector has the key 0, through which nothing flows back; its gradient as a query remains. From (7), a token that
is alone gives ``dV_i`` the whole ``dO_i``.

Four tokens, two to a bucket, which here is given. A token meets the other of its bucket and is not in its own ``P(i)``;
those of the second bucket also meet the chunk before, the first.

>>> x, v = np.ones((4, 2)), np.array([[1.0], [2.0], [4.0], [8.0]])
>>> out, saved = forward(x, v, chunk=2, buckets=np.array([[0, 1, 0, 1]]))
>>> print(out.T.round(3))  # 4; (1 + 4 + 8) / 3; 1; (1 + 4 + 2) / 3
[[4.    4.333 1.    2.333]]
>>> print(backward(np.ones((4, 1)), saved).v.T.round(3))
[[1.667 0.333 1.667 0.333]]

References
----------
Kitaev, Kaiser and Levskaya (2020), "Reformer: the efficient transformer", section 2 and appendix A (multi-round).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from linattn_ref.attention.features.feature_maps_random import unit, unit_backward
from linattn_ref.attention.parts import lsh_hashing
from linattn_ref.attention.parts.lsh_hashing import buckets, draw_rotations, find_order, pattern, put_back, sides
from linattn_ref.attention.parts.masks import divide, mix, scores, shown
from linattn_ref.attention.parts.recurrent import matrix_of
from linattn_ref.op import Array, Bool, Constant, Float, Int, Integers, op

__all__ = ["Gradients", "Saved", "backward", "buckets", "draw_rotations", "forward", "matrix", "pattern"]


class Saved(NamedTuple):
    """What the backward pass needs: the inputs, the output, three numbers per row, and a permutation per round."""

    qk: Float[Array, "... N D"]  # masked rows 0
    length: Float[Array, "... N 1"]  # |x|
    v: Float[Array, "... N M"]  # masked rows 0
    out: Float[Array, "... N M"]
    m: Float[Array, "... N 1"]  # z = m + log s
    s: Float[Array, "... N 1"]  # 0 for a token that meets nobody
    order: Int[Integers, "... rounds N"]  # the tokens by rank
    key_mask: Bool[Array, "... N"] | None
    chunk: int
    causal: bool
    scale: float


class Gradients(NamedTuple):
    qk: Float[Array, "... N D"]
    v: Float[Array, "... N M"]


@op(look=lsh_hashing.check_hash, values=lsh_hashing.check_rotations)
def forward(
    qk: Float[Array, "... N D"],
    v: Float[Array, "... N M"],
    *,
    rotations: Constant[Array, "rounds D buckets/2"] | None = None,
    chunk: int,
    causal: bool = False,
    key_mask: Bool[Array, "... N"] | None = None,
    scale: float | None = None,
    buckets: Int[Integers, "... rounds N"] | None = None,
) -> tuple[Array, Saved]:
    """Equations (1)-(7) for the hash of ``qk`` by ``rotations``, or held fixed at ``buckets``, in chunks of any size.

    The scale is as the paper prints it; the authors' code comes to 1.
    """
    scale = qk.shape[-1] ** -0.5 if scale is None else scale
    chunk = min(chunk, qk.shape[-2])
    order = find_order(qk, rotations, key_mask, buckets)  # (..., rounds, N)
    qk, v = shown(qk, key_mask), shown(v, key_mask)
    k, length = unit(qk)  # (1)
    m, s, o = np.full_like(length, np.finfo(v.dtype).min), np.zeros_like(length), np.zeros_like(v)
    for order_r, share in meetings(order, chunk, causal, key_mask, v):
        a, *_, v_r = scores_of_round(qk, k, v, order_r, share, chunk, scale)
        m_r = np.maximum(a.max(axis=-1, keepdims=True), np.finfo(a.dtype).min)
        e = np.where(share > 0, share * np.exp(a - m_r), share)
        s_r, o_r = e.sum(axis=-1, keepdims=True), mix(e, v_r)  # (3), (4)
        m_r, s_r, o_r = (put_back(x, order_r) for x in (m_r, s_r, o_r))
        before, m = m, np.maximum(m, m_r)
        old, new = np.exp(before - m), np.exp(m_r - m)
        s = old * s + new * s_r  # (5)
        o = np.where(old == 0, old, old * o) + np.where(new == 0, new, new * o_r)  # (5), where there is weight left
    out = np.where(is_alone(s, key_mask), v, divide(o, s))  # (7)
    return out, Saved(qk, length, v, out, m, s, order, key_mask, chunk, causal, scale)


@op
def backward(d_out: Float[Array, "... N M"], saved: Saved) -> Gradients:
    """Equations (8)-(11), with the hash held fixed."""
    qk, length, v, out, m, s, order, key_mask, chunk, causal, scale = saved
    k, _ = unit(qk)  # (1)
    d_q, d_k, d_v = np.zeros_like(qk), np.zeros_like(k), np.where(is_alone(s, key_mask), d_out, d_out.dtype.type(0))
    r = (d_out * out).sum(axis=-1, keepdims=True)
    for order_r, share in meetings(order, chunk, causal, key_mask, v):
        a, q_r, k_r, v_r = scores_of_round(qk, k, v, order_r, share, chunk, scale)
        m_r, s_r, r_r, g = (sides(x, order_r, chunk)[0] for x in (m, s, r, d_out))
        p = np.where(share > 0, share * divide(np.exp(a - m_r), s_r), share)  # (6)
        d_a = np.where(p == 0, p, p * (g @ v_r.mT - r_r))  # (9)
        d_q += put_back(scale * mix(d_a, k_r), order_r)  # (10)
        d_k += lsh_hashing.sides_backward(scale * mix(d_a.mT, q_r), order_r)  # (10)
        d_v += lsh_hashing.sides_backward(mix(p.mT, g), order_r)  # (8)
    return Gradients(d_q + unit_backward(d_k, k, length), d_v)  # (11)


def scores_of_round(
    q: Array, k: Array, v: Array, order: Integers, share: Array, chunk: int, scale: float
) -> tuple[Array, Array, Array, Array]:
    """Scores ``(..., chunks, chunk, 2 chunk)`` of the pairs that meet in a round, -inf for others; q, k and v."""
    (q_r, _), (_, k_r), (_, v_r) = (sides(x, order, chunk) for x in (q, k, v))
    return np.where(share > 0, scores(q_r, k_r, scale), q.dtype.type(-np.inf)), q_r, k_r, v_r


def meetings(
    order: Integers, chunk: int, causal: bool, key_mask: Array | None, like: Array
) -> Iterator[tuple[Integers, Array]]:
    """The order ``(..., N)`` of each round, and shares ``1 / c_ij``, or 0, ``(..., chunks, chunk, 2 chunk)``."""
    *leading, rounds, n = order.shape
    chunks = lsh_hashing.chunk_of_token(order, chunk)[..., None]  # (..., rounds, N, 1)
    numbers = shown(np.broadcast_to(np.arange(1, n + 1, like=order)[:, None], (*leading, n, 1)), key_mask)
    for order_r in np.moveaxis(order, -2, 0):
        i, j = sides(numbers, order_r, chunk)  # from 1; 0 for a token that is masked or missing
        meets = (i > 0) & (j.mT > 0) & (i > j.mT if causal else i != j.mT)
        c = np.zeros_like(like, shape=meets.shape)
        for r in range(rounds):
            of_i, of_j = sides(chunks[..., r, :, :], order_r, chunk)
            c += np.isin(of_i - of_j.mT, (0, 1))  # (2)
        yield order_r, np.where(meets, 1 / np.maximum(c, 1), c.dtype.type(0))


def is_alone(s: Array, key_mask: Array | None) -> Array:
    """Who meets nobody, and so attends to itself: ``(..., N, 1)``."""
    return s == 0 if key_mask is None else (s == 0) & key_mask[..., None]


matrix = matrix_of(forward)
