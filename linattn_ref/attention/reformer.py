"""Reformer's LSH attention (Kitaev et al. 2020): a token attends to those that a hash function puts next to it.

Queries and keys are the same vectors ``x_i``, but a key has length 1:

    q_i = x_i,   k_j = x_j / |x_j|                           (1)

In each of ``rounds`` rounds the tokens are sorted by the bucket that a random hash gives them and cut into chunks; a
token meets those of its own chunk and of the one before (`linattn_ref.attention.lsh_hashing`). Let ``P_r(i)`` be those
that ``i`` meets in round ``r``, without itself and, if causal, without those after it. In how many rounds do ``i`` and
``j`` meet, and what does round ``r`` alone give?

    c_ij = number of rounds r with j in P_r(i)               (2)
    z_ri = log sum_{j in P_r(i)} exp(scale q_i . k_j) / c_ij (3)
    o_ri = sum_{j in P_r(i)} exp(scale q_i . k_j - z_ri) / c_ij v_j   (4)

The rounds are combined by their log-sum-exp, ``z_i = log sum_r exp z_ri``:

    o_i = sum_r exp(z_ri - z_i) o_ri                         (5)

A pair stands in ``c_ij`` rounds with ``1 / c_ij`` in each, so (5) is *one* softmax over all that ``i`` meets in any
round, ``P(i)``; the order and number of rounds only decide who is in it:

    P_ij = exp(scale q_i . k_j - z_i),   o_i = sum_{j in P(i)} P_ij v_j   (6)

A vector is always most similar to itself, so a token is not in its own ``P(i)``, unless there is nobody else: then it
attends to itself alone, ``o_i = v_i`` (7). A masked token is no key and no query: its output is 0.

With ``causal=True`` no weight falls on the future. Yet a future token that changes its bucket moves the chunks'
boundaries, so *which* of the past tokens are met does depend on it. Whoever samples token by token has to live with it.

:Time: ``O(rounds N (D buckets + chunk max(D, M)))``
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
term from (5): ``z_ri`` has gone into ``P``. From (1), with ``k = x / |x|`` and ``dk = (dx - k (k . dx)) / |x|``,

    dX_i = dQ_i + (dK_i - k_i (k_i . dK_i)) / |x_i|          (11)

A zero vector has the key 0 and passes nothing on. From (7), a token that is alone gives ``dV_i`` the whole ``dO_i``.

Example
-------
Four tokens, two to a bucket, which here is given. A token meets the other of its bucket and is not in its own ``P(i)``;
those of the second bucket also meet the chunk before, the first.

>>> import numpy as np
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

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention import lsh_hashing
from linattn_ref.attention.arguments import Array, Mask, backward_check, resolve_scale
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.lsh_hashing import Integers, draw_rotations
from linattn_ref.attention.masks import zero_masked
from linattn_ref.attention.reformer_checks import check_forward, check_pattern
from linattn_ref.attention.rooms import LshRoom, kernel_of, name_of_room
from linattn_ref.attention.unit_keys import add_rows, dot, inverse, key_of, length_of
from linattn_ref.kernels import reference
from linattn_ref.kernels.reference.saturation import saturate

__all__ = ["Gradients", "Saved", "backward", "buckets", "draw_rotations", "forward", "matrix", "pattern"]

buckets = lsh_hashing.buckets


@documented
class Saved(NamedTuple):
    """What the backward pass needs: the inputs, the output, two numbers a row, and a permutation a round."""

    qk: Array  # (..., N, D), masked rows 0
    length: Array  # (..., N, 1), |x|
    v: Array  # (..., N, M), masked rows 0
    out: Array  # (..., N, M)
    log_sum_exp: Array  # (..., N), z; -inf for a token that meets nobody
    order: Integers  # (..., rounds, N) int32, the tokens by rank
    key_mask: Mask | None  # (..., N)
    chunk: int
    causal: bool
    scale: float
    kernels: Any  # the room's name


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    qk: Array  # (..., N, D)
    v: Array  # (..., N, M)


@door(check_forward)
def forward(
    qk: Array,
    v: Array,
    *,
    rotations: Array | None = None,
    chunk: int,
    causal: bool = False,
    key_mask: Mask | None = None,
    scale: float | None = None,
    buckets: Integers | None = None,
    out: Array | None = None,
    kernels: LshRoom = reference,
) -> tuple[Array, Saved]:
    """LSH attention.

    Parameters
    ----------
    qk, v : ndarray, ``(..., N, D)``, ``(..., N, M)``
        Queries and keys in one, and values.
    rotations : ndarray ``(rounds, D, buckets/2)``
        From :func:`draw_rotations`; a round each. May be left out where ``buckets`` is given.
    chunk : int
        Tokens a chunk, any number; the last one is shorter where they do not divide.
    causal, key_mask, scale, out, kernels
        The common arguments: ``help(linattn_ref.attention)``. A masked token is sorted last; it gets no weight, and its
        own output is 0. The scale is as the paper prints it; the authors' code comes to 1.
    buckets : ndarray of integers ``(..., rounds, N)``, optional
        Hold the hash fixed at this, for finite differences and the like; by default the hash of ``qk``.
    """
    scale, chunk = resolve_scale(scale, qk.shape[-1]), min(chunk, qk.shape[-2])  # a chunk of all tokens is the largest
    order = find_order(qk, rotations, key_mask, buckets)  # (..., rounds, N)
    qk, v = zero_masked(qk, key_mask), zero_masked(v, key_mask)
    length = length_of(qk)  # (..., N, 1)
    buffer = {} if out is None else {"out": out}  # a room of one's own need not know of it
    out, log_sum_exp = kernels.lsh.forward(
        qk, key_of(qk, length), v, order, count_seen(qk, key_mask), chunk, bool(causal), scale, **buffer
    )  # (1)-(5)
    alone = is_alone(log_sum_exp, key_mask)
    np.copyto(out, v, where=alone[..., None])  # (7)
    kept = out, log_sum_exp, order, key_mask, chunk, bool(causal), scale, name_of_room(kernels)
    return out, Saved(qk, length, v, *kept)


@door(backward_check(Saved))
def backward(d_out: Array, saved: Saved) -> Gradients:
    """Gradients of :func:`forward`, equations (8)-(11), with the hash held fixed."""
    qk, length, v, out, log_sum_exp, order, key_mask, chunk, causal, scale, kernels = saved
    k = key_of(qk, length)  # (1)
    d_q, d_k, d_v = kernel_of(kernels, "lsh").backward(
        d_out, qk, k, v, out, log_sum_exp, order, count_seen(qk, key_mask), chunk, causal, scale
    )  # (8)-(10)
    add_rows(d_v, d_out, is_alone(log_sum_exp, key_mask))  # from (7)
    # (11), in the arrays that are there: each pass over new memory takes as long as a tenth of the kernel.
    k *= dot(k, d_k)  # the part along the key
    d_k -= k
    d_k *= inverse(length)
    d_q += d_k
    return Gradients(d_q, d_v)


def is_alone(log_sum_exp: Array, key_mask: Mask | None) -> Mask:
    """Who meets nobody, and so attends to itself: ``(..., N)``."""
    alone = np.isneginf(log_sum_exp)
    return alone if key_mask is None else alone & key_mask


def count_seen(qk: Array, key_mask: Mask | None) -> Integers:
    """How many tokens are not masked: the first so many of every sorted order, ``(...)``."""
    return np.full(qk.shape[:-2], qk.shape[-2]) if key_mask is None else key_mask.sum(axis=-1, dtype=np.int32)


def find_order(qk: Array, rotations: Array | None, key_mask: Mask | None, buckets: Integers | None) -> Integers:
    """The tokens sorted by their hash in each round, ``(..., rounds, N)``."""
    if buckets is not None:
        buckets = buckets.astype(np.int64)  # with room for one more, that of masked tokens
    else:
        buckets = lsh_hashing.buckets(zero_masked(qk, key_mask), rotations.astype(qk.dtype))  # type: ignore[union-attr]
    return lsh_hashing.order_by_bucket(buckets, key_mask)


# --- Who meets whom -------------------------------------------------------------------------------------------------


@door(check_pattern)
def pattern(
    qk: Array,
    *,
    rotations: Array | None = None,
    chunk: int,
    causal: bool = False,
    key_mask: Mask | None = None,
    buckets: Integers | None = None,
) -> Mask:
    """Which token attends to which in any round, ``(..., N, N)``, for teaching and tests; arguments as `forward`'s."""
    order = find_order(qk, rotations, key_mask, buckets)
    return lsh_hashing.pattern_of(order, chunk, causal=causal, key_mask=key_mask)


@door(check_pattern)
def matrix(
    qk: Array,
    *,
    rotations: Array | None = None,
    chunk: int,
    causal: bool = False,
    key_mask: Mask | None = None,
    scale: float | None = None,
    buckets: Integers | None = None,
) -> Array:
    """The dense matrix ``P (..., N, N)`` of (6) and (7): ``out == matrix @ v``."""
    allowed = pattern.unchecked(qk, rotations=rotations, chunk=chunk, causal=causal, key_mask=key_mask, buckets=buckets)
    qk = zero_masked(qk, key_mask)
    k = key_of(qk, length_of(qk))
    scores = saturate(resolve_scale(scale, qk.shape[-1]) * (qk @ k.swapaxes(-1, -2)), qk, k)  # (..., N, N)
    scores = np.where(allowed, scores, scores.dtype.type(-np.inf))
    row_max = np.where(allowed.any(axis=-1), scores.max(axis=-1), qk.dtype.type(0))[..., None]
    p = np.exp(scores - row_max)
    return p / np.maximum(p.sum(axis=-1, keepdims=True), np.finfo(p.dtype).tiny)  # (6)
