"""Max pooling along a sequence: of each segment and feature, the largest number.

    y_rw = max of x_jw over the unmasked j in segment r      (1)
    dx_jw = dy_rw for the j that gave the maximum, else 0    (2)  the first one of equals

The segments are those of ``numpy.array_split``. One of the projections with which Linformer can mix keys and values,
and a function of the sequence, not a matrix: softmax attention over what it gives is the mechanism.

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
from numpy.typing import NDArray

from linattn_ref.attention.arguments import Array, Mask, check_array, check_key_mask, check_saved, check_shape
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.shapes import segment_bounds

__all__ = ["Gradients", "Saved", "backward", "forward"]


@documented
class Saved(NamedTuple):
    """What the backward pass needs: which key gave each maximum."""

    position: NDArray[np.int64]  # (..., R, W), in the sequence
    found: Mask  # (..., R, 1), False where a segment has no unmasked key
    length: int  # L


@documented
class Gradients(NamedTuple):
    """Gradient of the input of ``forward``."""

    x: Array  # (..., L, W)


def _check_forward(x: Array, reduced: int, *, key_mask: Mask | None = None) -> None:
    check_array("x", x)
    check_key_mask(key_mask, x)
    segment_bounds(x.shape[-2], reduced)


@door(_check_forward)
def forward(x: Array, reduced: int, *, key_mask: Mask | None = None) -> tuple[Array, Saved]:
    """Equation (1), ``(..., L, W) -> (..., R, W)``; a segment without an unmasked key gives 0."""
    bounds = segment_bounds(x.shape[-2], reduced)
    open_x = x if key_mask is None else np.where(key_mask[..., None], x, -np.inf)
    position = np.stack(
        [start + open_x[..., start:end, :].argmax(axis=-2) for start, end in pairwise(bounds)],
        axis=-2,
    )  # (..., R, W)
    found = np.ones((*x.shape[:-2], reduced, 1), np.bool_)
    if key_mask is not None:
        found = np.logical_or.reduceat(key_mask, bounds[:-1], axis=-1)[..., None]
    pooled = np.where(found, np.take_along_axis(x, position, axis=-2), x.dtype.type(0))  # (1)
    return pooled, Saved(position, found, x.shape[-2])


def _check_backward(d_pooled: Array, saved: Any) -> None:
    check_saved(saved, Saved)
    check_array("d_pooled", d_pooled)
    check_shape("d_pooled", d_pooled, saved.position.shape, "(..., R, W)")


@door(_check_backward)
def backward(d_pooled: Array, saved: Saved) -> Gradients:
    """Gradient of ``x``, equation (2)."""
    position, found, length = saved
    d_x = np.zeros((*position.shape[:-2], length, position.shape[-1]), d_pooled.dtype)
    np.put_along_axis(d_x, position, np.where(found, d_pooled, d_pooled.dtype.type(0)), axis=-2)  # (2)
    return Gradients(d_x)
