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
from numpy.typing import NDArray

from linattn_ref.attention.arguments import Array, Mask, check_array, check_key_mask, check_saved, check_shape
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.masks import zero_masked
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.attention.shapes import segment_bounds

__all__ = ["Gradients", "Saved", "backward", "forward", "occupied"]


@documented
class Saved(NamedTuple):
    """What the backward pass needs: which rows went into which mean."""

    bounds: NDArray[np.int64]  # (R + 1,)
    counts: Array  # (R, 1), or with a mask (..., R, 1); at least 1
    key_mask: Mask | None  # (..., N)


@documented
class Gradients(NamedTuple):
    """Gradient of the input of ``forward``."""

    x: Array  # (..., N, W)


def _check_forward(x: Array, landmarks: int, *, key_mask: Mask | None = None) -> None:
    check_array("x", x)
    check_key_mask(key_mask, x)
    segment_bounds(x.shape[-2], landmarks)


@door(_check_forward)
def forward(x: Array, landmarks: int, *, key_mask: Mask | None = None) -> tuple[Array, Saved]:
    """Means over segments, equation (1): ``(..., N, W) -> (..., R, W)``.

    Parameters
    ----------
    x : ndarray ``(..., N, W)``
    landmarks : int
        ``R``, at most ``N``.
    key_mask : ndarray of bool ``(..., N)``, optional
        Masked rows take no part; a segment without any other gives 0 (:func:`occupied` tells which).
    """
    bounds = segment_bounds(x.shape[-2], landmarks)
    if key_mask is None:
        counts = np.asarray(np.diff(bounds)[:, None], x.dtype, like=x)  # (R, 1)
    else:
        counts = np.maximum(_sums(key_mask[..., None], landmarks), 1).astype(x.dtype)  # (..., R, 1)
    means = _sums(zero_masked(x, key_mask), landmarks) / counts  # (1)  (..., R, W)
    return means, Saved(bounds, counts, key_mask)


def _check_backward(d_means: Array, saved: Any) -> None:
    check_saved(saved, Saved)
    check_array("d_means", d_means, dtype=saved.counts.dtype)
    rows = len(saved.bounds) - 1
    check_shape("d_means", d_means, (*d_means.shape[:-2], rows, d_means.shape[-1]), "(..., R, W)")


@door(_check_backward)
def backward(d_means: Array, saved: Saved) -> Gradients:
    """Gradient of ``x``, equation (2)."""
    bounds, counts, key_mask = saved
    segment = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))  # (N,), r of j
    d_x = (d_means / counts)[..., segment, :]  # (2)  (..., N, W)
    return Gradients(zero_masked(d_x, key_mask))


@plain_numbers
def occupied(key_mask: Mask, landmarks: int) -> Mask:
    """Which segments have an unmasked row: ``(..., N) -> (..., R)``."""
    return _sums(key_mask[..., None], landmarks)[..., 0] > 0


def _sums(x: Any, landmarks: int) -> Any:
    """Sums over segments ``(..., N, W) -> (..., R, W)``: those that are one longer, then the others."""
    *leading, n, width = x.shape
    size, longer = divmod(n, landmarks)
    end = longer * (size + 1)
    first = x[..., :end, :].reshape(*leading, longer, size + 1, width).sum(axis=-2)
    others = x[..., end:, :].reshape(*leading, landmarks - longer, size, width).sum(axis=-2)
    return np.concatenate([first, others], axis=-2)
