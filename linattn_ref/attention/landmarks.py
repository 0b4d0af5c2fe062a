"""Landmarks: a few rows that stand for a sequence, the means of its segments (Xiong et al. 2021, equation 9).

Any length: the sequence is cut as ``numpy.array_split`` cuts it, the first ``N mod R`` segments being one longer.

    x~_r = sum of the unmasked x_j in segment r / their number            (1)
    dx_j = dx~_r / that number,   r the segment of j, 0 if j is masked    (2)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.attention.arguments import Array, Mask, check_array, check_key_mask, check_shape
from linattn_ref.attention.masks import zero_masked
from linattn_ref.attention.shapes import segment_bounds


class Segments(NamedTuple):
    """Which rows went into which mean."""

    bounds: NDArray[np.int64]  # (R + 1,)
    counts: Array  # (R, 1), or with a mask (..., R, 1); at least 1
    key_mask: Mask | None  # (..., N)


def segment_means(x: Array, landmarks: int, *, key_mask: Mask | None = None) -> tuple[Array, Segments]:
    """Means over segments, equation (1): ``(..., N, W) -> (..., R, W)``.

    Parameters
    ----------
    x : ndarray ``(..., N, W)``
    landmarks : int
        ``R``, at most ``N``.
    key_mask : ndarray of bool ``(..., N)``, optional
        Masked rows take no part; a segment without any other gives 0 (:func:`occupied` tells which).
    """
    check_array("x", x)
    check_key_mask(key_mask, x)
    bounds = segment_bounds(x.shape[-2], landmarks)
    if key_mask is None:
        counts = np.asarray(np.diff(bounds)[:, None], x.dtype, like=x)  # (R, 1)
    else:
        counts = np.maximum(_sums(key_mask[..., None], landmarks), 1).astype(x.dtype)  # (..., R, 1)
    means = _sums(zero_masked(x, key_mask), landmarks) / counts  # (1)  (..., R, W)
    return means, Segments(bounds, counts, key_mask)


def segment_means_backward(d_means: Array, segments: Segments) -> Array:
    """Gradient of ``x (..., N, W)``, equation (2)."""
    bounds, counts, key_mask = segments
    check_array("d_means", d_means, dtype=counts.dtype)
    check_shape("d_means", d_means, (*d_means.shape[:-2], len(bounds) - 1, d_means.shape[-1]), "(..., R, W)")
    segment = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))  # (N,), r of j
    d_x = (d_means / counts)[..., segment, :]  # (2)  (..., N, W)
    return zero_masked(d_x, key_mask)


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
