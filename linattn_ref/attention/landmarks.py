"""Landmarks: a few rows that stand for a sequence, the means of its segments (Xiong et al. 2021, equation 9).

Any length: the sequence is cut as ``numpy.array_split`` cuts it, the first ``N mod R`` segments being one longer.

    x~_r = sum of the unmasked x_j in segment r / their number            (1)
    dx_j = dx~_r / that number,   r the segment of j, 0 if j is masked    (2)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.attention.arguments import Array, Mask, check_array, check_key_mask, check_shape, zero_masked
from linattn_ref.attention.linformer_projections import segment_bounds


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
        counts = np.diff(bounds).astype(x.dtype)  # (R,)
    else:
        counts = np.add.reduceat(key_mask, bounds[:-1], axis=-1, dtype=x.dtype)  # (..., R)
        counts = np.maximum(counts, 1)
    counts = counts[..., None]  # (..., R, 1)
    means = np.add.reduceat(zero_masked(x, key_mask), bounds[:-1], axis=-2) / counts  # (1)  (..., R, W)
    return means, Segments(bounds, counts, key_mask)


def segment_means_backward(d_means: Array, segments: Segments) -> Array:
    """Gradient of ``x (..., N, W)``, equation (2)."""
    bounds, counts, key_mask = segments
    check_array("d_means", d_means, dtype=counts.dtype)
    check_shape("d_means", d_means, (*d_means.shape[:-2], len(bounds) - 1, d_means.shape[-1]), "(..., R, W)")
    d_x = np.repeat(d_means / counts, np.diff(bounds), axis=-2)  # (2)  (..., N, W)
    return zero_masked(d_x, key_mask)


def occupied(key_mask: Mask, landmarks: int) -> Mask:
    """Which segments have an unmasked row: ``(..., N) -> (..., R)``."""
    return np.logical_or.reduceat(key_mask, segment_bounds(key_mask.shape[-1], landmarks)[:-1], axis=-1)
