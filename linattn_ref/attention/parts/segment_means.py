"""Segment means (Xiong et al. 2021, equation 16): a few rows, *landmarks*, that stand for a sequence.

Any length: the sequence is cut as ``numpy.array_split`` cuts it, the first ``N mod R`` segments being one longer. (The
paper prints a sum of ``m`` rows over ``m``, the number of landmarks; meant is the mean over a segment.)

    x~_r = sum of the unmasked x_j in segment r / their number            (1)
    dx_j = dx~_r / that number,   r the segment of j, 0 if j is masked    (2)

Example
-------
>>> import numpy as np
>>> means, saved = forward(np.array([[1.0], [3.0], [8.0], [4.0], [7.0]]), 2)  # three rows and two
>>> print(means.T)
[[4.  5.5]]
>>> print(backward(np.array([[3.0], [4.0]]), saved).x.T)
[[1. 1. 1. 2. 2.]]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.parts.masks import shown
from linattn_ref.op import Array, Bool, Float, op
from linattn_ref.op.options import check_sizes

__all__ = ["Gradients", "Saved", "backward", "forward", "occupied"]


class Saved(NamedTuple):
    """What the backward pass needs: which rows went into which mean."""

    bounds: Any  # (R + 1,)
    counts: Float[Array, "#... R 1"]  # without a mask the same for all; at least 1
    key_mask: Bool[Array, "... N"] | None
    shape: tuple[int, ...]  # of the means


class Gradients(NamedTuple):
    x: Float[Array, "... N W"]


def look(x: Any, landmarks: Any, **_: Any) -> None:
    segment_bounds(x.shape[-2], landmarks, "landmarks")


def look_occupied(key_mask: Any, landmarks: Any) -> None:
    segment_bounds(key_mask.shape[-1], landmarks, "landmarks")


@op(look=look)
def forward(
    x: Float[Array, "... N W"], landmarks: int, *, key_mask: Bool[Array, "... N"] | None = None
) -> tuple[Array, Saved]:
    """Means of ``landmarks`` segments, ``(..., R, W)``, equation (1); 0 of one whose rows are all masked."""
    bounds = segment_bounds(x.shape[-2], landmarks)
    if key_mask is None:
        counts = np.asarray(np.diff(bounds)[:, None], x.dtype, like=x)  # (R, 1)
    else:
        counts = np.maximum(sums(key_mask[..., None], landmarks), 1).astype(x.dtype)  # (..., R, 1)
    means = sums(shown(x, key_mask), landmarks) / counts  # (1)
    return means, Saved(bounds, counts, key_mask, means.shape)


def look_back(d_means: Any, saved: Any) -> None:
    if d_means.shape != saved.shape:
        raise ValueError(f"d_means: expected shape (..., R, W) = {saved.shape}, got {d_means.shape}")


@op(look=look_back)
def backward(d_means: Float[Array, "... R W"], saved: Saved) -> Gradients:
    """Equation (2)."""
    bounds, counts, key_mask, _ = saved
    segment = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))  # (N,), r of j
    return Gradients(shown((d_means / counts)[..., segment, :], key_mask))  # (2)


@op(look=look_occupied)
def occupied(key_mask: Bool[Array, "... N"], landmarks: int) -> Array:
    """Which segments have a row that is not masked: ``(..., N) -> (..., R)``."""
    return sums(key_mask[..., None], landmarks)[..., 0] > 0


def segment_bounds(length: int, reduced: int, name: str = "reduced") -> Any:
    """Bounds ``(R + 1,)`` of ``reduced`` segments of ``length`` positions; the first ``L mod R`` are one longer.

    An error calls their number by ``name``.
    """
    check_sizes(length=length)
    if not (isinstance(reduced, int) and 1 <= reduced <= length) or isinstance(reduced, bool):
        raise ValueError(f"{name}: expected an integer with 1 <= R <= L = {length}, got {reduced!r}")
    size, longer = divmod(length, reduced)
    return np.arange(reduced + 1) * size + np.minimum(np.arange(reduced + 1), longer)


def sums(x: Any, landmarks: int) -> Any:
    """Sums over segments ``(..., N, W) -> (..., R, W)``: those that are one longer, then the others."""
    *leading, n, width = x.shape
    size, longer = divmod(n, landmarks)
    end = longer * (size + 1)
    first = x[..., :end, :].reshape(*leading, longer, size + 1, width).sum(axis=-2)
    others = x[..., end:, :].reshape(*leading, landmarks - longer, size, width).sum(axis=-2)
    return np.concatenate([first, others], axis=-2)
