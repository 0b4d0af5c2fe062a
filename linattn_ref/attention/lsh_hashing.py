"""Which tokens meet in Reformer's attention: hashing, sorting, chunks.

    h_r(x) = argmax([x R_r ; -x R_r])                        (1)  R_r (D, B/2), one of B buckets in round r
    rank_r(i) = place of token i by (h_r(x_i), i)            (2)
    chunk_r(i) = floor(rank_r(i) / chunk)                    (3)
    i meets j in round r  if  chunk_r(i) - chunk_r(j) is 0 or 1   (4)

Vectors in similar directions often share a bucket (1), as `linattn_ref.theory.lsh_collision` computes. Buckets come in
any size; sorted and cut (2) (3) they give pieces of one size, and the piece before (4) is there for buckets that are
cut in two. Two tokens may meet without a bucket in common, and share one without meeting.

None of this is differentiated: all are integers.

Example
-------
Three tokens at 20, 100 and 200 degrees; the rotation leaves the axes in place, so that a bucket is one end of one.

>>> import numpy as np
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
from numpy.typing import DTypeLike, NDArray

from linattn_ref.attention.arguments import Array, Mask, check_dtype, check_sizes
from linattn_ref.attention.plain_numbers import plain_numbers

__all__ = ["Integers", "buckets", "chunk_of_token", "draw_rotations", "order_by_bucket", "pattern_of"]

Integers = NDArray[np.integer[Any]]


@plain_numbers
def draw_rotations(rounds: int, width: int, n_buckets: int, rng: Generator, dtype: DTypeLike = np.float64) -> Array:
    """Standard normal ``R``, one a round: ``(rounds, D, n_buckets/2)``.

    Raises
    ------
    ValueError
        A count below 1, or an odd number of buckets.
    """
    check_sizes(rounds=rounds, width=width, n_buckets=n_buckets)
    check_dtype(dtype)
    if n_buckets % 2:
        raise ValueError(f"n_buckets: expected an even number, one bucket for each end of an axis, got {n_buckets}")
    return rng.standard_normal((rounds, width, n_buckets // 2)).astype(dtype)


def buckets(qk: Array, rotations: Array) -> Integers:
    """The hash (1) of every token in every round.

    Parameters
    ----------
    qk : ndarray ``(..., N, D)``
    rotations : ndarray ``(rounds, D, buckets/2)``

    Returns
    -------
    ndarray of int16 ``(..., rounds, N)``, or of int32 where there are more buckets than that holds
        From 0 to ``buckets - 1``.
    """
    rounds, width, half = rotations.shape
    rotation = rotations.swapaxes(0, 1).reshape(width, -1)  # (D, rounds * buckets/2), side by side
    # NumPy sorts 16 bits in a tenth of the time.
    dtype: type[np.integer[Any]] = np.int16 if 2 * half < 2**15 else np.int32
    found = np.empty_like(qk, dtype, shape=(*qk.shape[:-2], rounds, qk.shape[-2]))
    for head in np.ndindex(qk.shape[:-2]):  # one at a time: what is rotated stays in the processor's cache
        rotated = (qk[head] @ rotation).reshape(-1, rounds, half)  # (N, rounds, buckets/2)
        farthest = abs(rotated).argmax(axis=-1)[..., None]  # (N, rounds, 1): the largest of x and -x
        negative = np.take_along_axis(rotated, farthest, axis=-1) < 0
        found[head] = (farthest + half * negative)[..., 0].T  # (1)
    return found


def order_by_bucket(buckets: Integers, key_mask: Mask | None = None) -> Integers:
    """The tokens in the order of (2), masked ones last: ``order[..., r, s]`` is the token of rank ``s``.

    Parameters
    ----------
    buckets : ndarray of integers ``(..., rounds, N)``
    key_mask : ndarray of bool ``(..., N)``, optional

    Returns
    -------
    ndarray of int32 ``(..., rounds, N)``
        A permutation of ``0 .. N - 1`` in each round.
    """
    if key_mask is not None:
        buckets = np.where(key_mask[..., None, :], buckets, buckets.max() + 1)
    return buckets.argsort(axis=-1, kind="stable").astype(np.int32)  # stable: equal buckets by position


@plain_numbers
def chunk_of_token(order: Integers, chunk: int) -> Integers:
    """The chunk (3) in which each token lies in each round, ``(..., rounds, N)``."""
    chunks = np.empty_like(order)
    numbers = np.arange(order.shape[-1], dtype=order.dtype) // chunk  # (N,) by rank
    np.put_along_axis(chunks, order, np.broadcast_to(numbers, order.shape), axis=-1)
    return chunks


@plain_numbers
def pattern_of(order: Integers, chunk: int, *, causal: bool = False, key_mask: Mask | None = None) -> Mask:
    """Which token attends to which in any round, ``(..., N, N)``; the self rule is its last line.

    For teaching and tests: what attention itself uses has no such array.
    """
    chunks = chunk_of_token(order, chunk)  # (..., rounds, N)
    ahead = chunks[..., :, None] - chunks[..., None, :]  # (..., rounds, N, N)
    allowed = ((ahead == 0) | (ahead == 1)).any(axis=-3)  # (4)  (..., N, N)
    itself = np.eye(order.shape[-1], dtype=np.bool_)
    allowed &= ~itself
    if causal:
        allowed &= np.tri(order.shape[-1], dtype=np.bool_)
    if key_mask is not None:
        allowed &= key_mask[..., :, None] & key_mask[..., None, :]
        itself = itself & key_mask[..., :, None]
    return allowed | (itself & ~allowed.any(axis=-1, keepdims=True))
