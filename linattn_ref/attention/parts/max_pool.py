"""Max pooling along a sequence: of each segment and feature, the largest number.

    y_rw = max of x_jw over the unmasked j in segment r      (1)
    dx_jw = dy_rw for the j that gave the maximum, else 0    (2)  the first one of equals

The segments are those of ``numpy.array_split``. One of the projections with which Linformer can mix keys and values,
and a function of the sequence, not a matrix: the mechanism is softmax attention over the pooled keys and values.

    k_mixed, saved_k = max_pool.forward(k, reduced)
    v_mixed, saved_v = max_pool.forward(v, reduced)
    out, saved = softmax.forward(q, k_mixed, v_mixed)
    grads = softmax.backward(d_out, saved)
    d_k, d_v = max_pool.backward(grads.k, saved_k).x, max_pool.backward(grads.v, saved_v).x

Example
-------
>>> import numpy as np
>>> y, saved = forward(np.array([[1.0], [5.0], [2.0], [4.0]]), 2)
>>> print(y.T)
[[5. 4.]]
>>> print(backward(np.array([[10.0], [20.0]]), saved).x.T)
[[ 0. 10.  0. 20.]]

References
----------
Wang et al. (2020), "Linformer: self-attention with linear complexity", section 4.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.parts.segment_means import occupied, segment_bounds
from linattn_ref.op import Array, Bool, Float, op

__all__ = ["Gradients", "Saved", "backward", "forward"]


class Saved(NamedTuple):
    """What the backward pass needs: which key gave each maximum."""

    position: Any  # (..., R, W), in the sequence
    found: Bool[Array, "... R 1"]  # False where a segment has no unmasked key
    length: int  # L


class Gradients(NamedTuple):
    x: Float[Array, "... L W"]


def look(x: Any, reduced: Any, **_: Any) -> None:
    segment_bounds(x.shape[-2], reduced)


@op(look=look)
def forward(
    x: Float[Array, "... L W"], reduced: int, *, key_mask: Bool[Array, "... L"] | None = None
) -> tuple[Array, Saved]:
    """Equation (1), ``(..., R, W)``; 0 for a segment whose keys are all masked."""
    bounds = segment_bounds(x.shape[-2], reduced)
    if key_mask is None:
        key_mask = np.ones_like(x[..., 0], np.bool_)
    seen, positions = np.where(key_mask[..., None], x, x.dtype.type(-np.inf)), []
    for start, end in pairwise(bounds):
        rows, unmasked = seen[..., start:end, :], key_mask[..., start:end, None]
        largest = unmasked & ((rows == rows.max(axis=-2, keepdims=True)) | np.isnan(rows))
        positions.append(start + largest.argmax(axis=-2))
    position = np.stack(positions, axis=-2)
    found = occupied(key_mask, reduced)[..., None]
    pooled = np.where(found, np.take_along_axis(x, position, axis=-2), x.dtype.type(0))  # (1)
    return pooled, Saved(position, found, x.shape[-2])


def look_back(d_pooled: Any, saved: Any) -> None:
    if d_pooled.shape != saved.position.shape:
        raise ValueError(f"d_pooled: expected shape (..., R, W) = {saved.position.shape}, got {d_pooled.shape}")


@op(look=look_back)
def backward(d_pooled: Float[Array, "... R W"], saved: Saved) -> Gradients:
    """Equation (2)."""
    position, found, length = saved
    d_x = np.zeros((*position.shape[:-2], length, position.shape[-1]), d_pooled.dtype)
    np.put_along_axis(d_x, position, np.where(found, d_pooled, d_pooled.dtype.type(0)), axis=-2)  # (2)
    return Gradients(d_x)
