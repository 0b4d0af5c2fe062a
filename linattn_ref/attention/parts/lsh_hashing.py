"""Which tokens meet in Reformer's attention: hashing, sorting, chunks.

    h_r(x) = argmax([x R_r ; -x R_r])                        (1)  R_r (D, B/2), one of B buckets in round r
    rank_r(i) = place of token i by (h_r(x_i), i)            (2)
    chunk_r(i) = floor(rank_r(i) / chunk)                    (3)
    i meets j in round r  if  chunk_r(i) - chunk_r(j) is 0 or 1   (4)

Vectors in similar directions often share a bucket (1), as `linattn_ref.theory.lsh_collision` computes. Buckets come in
any size; sorted and cut (2) (3) they give pieces of one size, and the piece before (4) is there for buckets that are
cut in two. Two tokens may meet without a bucket in common, and share one without meeting.

None of this is differentiated: all are integers.

Three tokens at 20, 100 and 200 degrees; the rotation leaves the axes in place, so that a bucket is one end of an axis.

>>> angles = np.radians([20, 100, 200])
>>> found = buckets(np.stack([np.cos(angles), np.sin(angles)], axis=-1), np.eye(2)[None])
>>> print(found, order_by_bucket(found))
[[0 1 2]] [[0 1 2]]

References
----------
Kitaev, Kaiser and Levskaya (2020), "Reformer: the efficient transformer", section 2.
Andoni et al. (2015), "Practical and optimal LSH for angular distance" (the hash function).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator

from linattn_ref.attention.parts.masks import shown
from linattn_ref.op import Array, Bool, Constant, Float, Int, Integers, Mask, op
from linattn_ref.op.options import check_sizes, sized

__all__ = ["buckets", "check_hash", "check_rotations", "chunk_of_token", "draw_rotations", "find_order"]
__all__ += ["order_by_bucket", "pattern", "pattern_of", "put_back", "sides", "sides_backward"]


def check_counts(rounds: Any, width: Any, n_buckets: Any, **_: Any) -> None:
    check_sizes(rounds=rounds, width=width, n_buckets=n_buckets)
    if n_buckets % 2:
        raise ValueError(f"n_buckets: expected an even number, one bucket for each end of an axis, got {n_buckets}")


@op(look=check_counts)
def draw_rotations(rounds: int, width: int, n_buckets: int, rng: Generator, dtype: Any = np.float64) -> Array:
    """Standard normal ``R``, one per round: ``(rounds, D, n_buckets/2)``."""
    return rng.standard_normal((rounds, width, n_buckets // 2)).astype(dtype)


def check_rotations(rotations: Any = None, buckets: Any = None, **_: Any) -> None:
    """Rotations that are used are finite, and above the largest bucket there is a number for masked tokens."""
    if buckets is not None and buckets.max() >= np.iinfo(np.int64).max:
        raise ValueError(f"buckets: expected numbers below 2**63 - 1, got {buckets.max()}")
    if buckets is None and not np.isfinite(rotations).all():  # an argmax would hide it
        raise ValueError("rotations: expected finite numbers, got NaN or infinity, which would hash all tokens alike")


def check_axes(rotations: Any = None, buckets: Any = None, **_: Any) -> None:
    """None that is given is empty."""
    for name, x in (("rotations", rotations), ("buckets", buckets)):
        if x is not None and 0 in x.shape:
            raise ValueError(f"{name}: every axis needs at least one entry, got shape {x.shape}")


@op(look=check_axes, values=check_rotations)
def buckets(qk: Float[Array, "... N D"], rotations: Constant[Array, "rounds D buckets/2"]) -> Integers:
    """The hash (1) of every token in every round, ``(..., rounds, N)``: from 0 to ``buckets - 1``, the first of equals.

    Integers of 16 bits where these suffice, which NumPy sorts in a tenth of the time.
    """
    rounds, width, half = rotations.shape
    rotation = rotations.swapaxes(0, 1).reshape(width, -1)  # (D, rounds * buckets/2), side by side
    dtype: type[np.integer[Any]] = np.int16 if 2 * half < 2**15 else np.int32
    found = np.empty_like(qk, dtype, shape=(*qk.shape[:-2], rounds, qk.shape[-2]))
    for head in np.ndindex(qk.shape[:-2]):  # one at a time: what is rotated stays in the processor's cache
        rotated = (qk[head] @ rotation).reshape(-1, rounds, half)  # (N, rounds, buckets/2)
        found[head] = np.concatenate([rotated, -rotated], axis=-1).argmax(axis=-1).T  # (1)
    return found


def order_by_bucket(buckets: Integers, key_mask: Array | None = None) -> Integers:
    """The tokens in the order of (2), masked ones last: ``order[..., r, s]`` is the token of rank ``s`` in round ``r``.

    A permutation of ``0 .. N - 1`` in each round, like ``buckets (..., rounds, N)``. With a mask, all buckets must be
    below the largest number of their dtype.
    """
    if key_mask is not None:
        buckets = np.where(key_mask[..., None, :], buckets, buckets.max() + 1)
    return buckets.argsort(axis=-1, kind="stable").astype(np.int32)  # (2); stable: equal buckets by position


@op(look=sized("chunk"))
def chunk_of_token(order: Int[Integers, "... rounds N"], chunk: int) -> Integers:
    """The chunk (3) in which each token lies in each round, ``(..., rounds, N)``."""
    return order.argsort(axis=-1).astype(order.dtype) // min(chunk, order.shape[-1])  # (3)


@op(look=sized("chunk"))
def pattern_of(
    order: Int[Integers, "... rounds N"],
    chunk: int,
    *,
    causal: bool = False,
    key_mask: Bool[Mask, "... N"] | None = None,
) -> Mask:
    """Which token attends to which in any round, ``(..., N, N)``; that it may see itself is the last line.

    For teaching and tests: what attention itself uses has no such array.
    """
    chunks = chunk_of_token(order, chunk)  # (..., rounds, N)
    allowed = np.isin(chunks[..., :, None] - chunks[..., None, :], (0, 1)).any(axis=-3)  # (4)  (..., N, N)
    itself = np.eye(order.shape[-1], dtype=np.bool_)
    allowed &= ~itself
    if causal:
        allowed &= np.tri(order.shape[-1], dtype=np.bool_)
    if key_mask is not None:
        allowed &= key_mask[..., :, None] & key_mask[..., None, :]
        itself = itself & key_mask[..., :, None]
    return allowed | (itself & ~allowed.any(axis=-1, keepdims=True))


def check_hash(chunk: Any, rotations: Any = None, buckets: Any = None, **_: Any) -> None:
    """There is a hash, by one or the other, and chunks have a size."""
    check_sizes(chunk=chunk)
    if rotations is None and buckets is None:
        raise TypeError("rotations: expected an array (rounds, D, buckets/2), got None and no buckets")
    check_axes(rotations, buckets)


def find_order(qk: Array, rotations: Array | None, key_mask: Any, held: Integers | None) -> Integers:
    """The tokens sorted in each round by their hash, or by buckets that are held fixed: ``(..., rounds, N)``."""
    found = buckets(shown(qk, key_mask), rotations) if held is None else held.astype(np.int64)
    return order_by_bucket(found, key_mask)


@op(look=check_hash, values=check_rotations)
def pattern(
    qk: Float[Array, "... N D"],
    *,
    rotations: Constant[Array, "rounds D buckets/2"] | None = None,
    chunk: int,
    causal: bool = False,
    key_mask: Bool[Mask, "... N"] | None = None,
    buckets: Int[Integers, "... rounds N"] | None = None,
) -> Mask:
    """Which token attends to which in any round, ``(..., N, N)``, for teaching and tests."""
    order = find_order(qk, rotations, key_mask, buckets)
    return pattern_of(order, chunk, causal=causal, key_mask=key_mask)


# --- Rows of one round, brought together and back --------------------------------------------------------------------
#
#             C queries          2 C keys
#     chunk g [ q q q q ]  meets [ k k k k | k k k k ]
#                                  chunk g-1  chunk g


def cut(x: Any, order: Integers, chunk: int) -> Any:
    """The rows of ``x (..., N, W)`` in sorted order, in chunks, the last one filled up with 0: ``(..., G, C, W)``."""
    *leading, n, width = x.shape
    groups = -(-n // chunk)
    rows = np.zeros_like(x, shape=(*leading, groups * chunk, width))
    rows[..., :n, :] = np.take_along_axis(x, order[..., None], axis=-2)
    return rows.reshape(*leading, groups, chunk, width)


def put_back(y: Array, order: Integers) -> Array:
    """The rows of :func:`cut` back in the order of the sequence: ``(..., G, C, W)`` to ``(..., N, W)``."""
    rows = y.reshape(*y.shape[:-3], -1, y.shape[-1])
    return np.take_along_axis(rows, order.argsort(axis=-1)[..., None], axis=-2)


def sides(x: Any, order: Integers, chunk: int) -> tuple[Any, Any]:
    """Rows of the queries of each chunk, ``(..., G, C, W)``, and of those they meet, ``(..., G, 2 C, W)``."""
    own = cut(x, order, chunk)
    before = np.zeros_like(own)
    before[..., 1:, :, :] = own[..., :-1, :, :]  # the first has none before it
    return own, np.concatenate([before, own], axis=-2)


def sides_backward(d_keys: Array, order: Integers) -> Array:
    """What a token gets as one that is met, by its own chunk and the one after: to ``(..., N, W)``.

    Written over ``d_keys``.
    """
    chunk = d_keys.shape[-2] // 2
    own = d_keys[..., chunk:, :]
    own[..., :-1, :, :] += d_keys[..., 1:, :chunk, :]
    return put_back(own, order)
