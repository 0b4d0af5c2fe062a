"""Where Linformer's mixed keys come from: learned matrices shared in four ways, pooling, strided convolution.

Wang et al. (2020), section 4, "Additional efficiency techniques". A learned projection is a matrix, drawn by
:func:`draw_projections`; mean pooling is a matrix too (:func:`mean_pool`). Max pooling and convolution are functions of
the sequence, each with its backward pass below it; softmax attention over what they give is the mechanism:

    k_mixed, saved_k = max_pool(k, reduced)
    v_mixed, saved_v = max_pool(v, reduced)
    out, saved = softmax.forward(q, k_mixed, v_mixed)
    grads = softmax.backward(d_out, saved)
    d_k, d_v = max_pool_backward(grads.k, saved_k), max_pool_backward(grads.v, saved_v)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from linattn_ref.attention.arguments import (
    Array,
    Mask,
    check_array,
    check_key_mask,
    check_shape,
    check_sizes,
)
from linattn_ref.attention.masks import zero_masked
from linattn_ref.attention.shapes import segment_bounds

SHARING = ("none", "headwise", "key_value", "layerwise")


# --- Learned matrices -----------------------------------------------------------------------------------------------


class Projection(NamedTuple):
    """The projections of one layer, as ``linformer.forward`` takes them. Shared matrices are the same array."""

    e: Array  # (R, L), or (H, R, L) with sharing "none"
    f: Array  # like e
    row_mask: Mask | None  # (H, R), where the heads have a different R and are padded to the largest


def draw_projections(
    length: int,
    reduced: ArrayLike,
    rng: np.random.Generator,
    *,
    layers: int,
    heads: int,
    sharing: str = "none",
    dtype: DTypeLike = np.float64,
) -> list[Projection]:
    """Random projections with entries N(0, 1/R) for every layer, shared as the paper lists.

    Parameters
    ----------
    length : int
        Number of keys ``L``.
    reduced : int, or ints ``(layers,)``, or ``(layers, heads)``
        ``R``; one a layer, or one a layer and head (``sharing="none"`` only).
    rng : numpy.random.Generator
    layers, heads : int
    sharing : str
        ========== ============================================= ============================
        sharing    what is shared                                parameters (all ``R`` equal)
        ========== ============================================= ============================
        none       nothing: each head has an ``E`` and an ``F``  ``2 layers heads R L``
        headwise   one ``E`` and one ``F`` for a layer's heads   ``2 layers R L``
        key_value  headwise, and ``E = F``                       ``layers R L``
        layerwise  one matrix for every layer, head, key, value  ``R L``
        ========== ============================================= ============================

    Returns
    -------
    list of Projection, one a layer
    """
    if sharing not in SHARING:
        raise ValueError(f"sharing: expected one of {', '.join(SHARING)}, got {sharing!r}")
    rows = _rows_of_each_head(length, reduced, layers, heads, sharing)  # (layers, heads)

    def draw(*shape: int) -> Array:
        return (rng.standard_normal(shape) / np.sqrt(shape[-2])).astype(dtype)

    if sharing == "layerwise":
        e = draw(rows[0, 0], length)
        return [Projection(e, e, None)] * layers
    if sharing == "key_value":
        return [Projection(e, e, None) for e in (draw(r, length) for r in rows[:, 0])]
    if sharing == "headwise":
        return [Projection(draw(r, length), draw(r, length), None) for r in rows[:, 0]]
    return [_pad([draw(r, length) for r in layer], [draw(r, length) for r in layer]) for layer in rows]


def parameter_count(projections: Iterable[Projection]) -> int:
    """Number of parameters, each shared matrix counted once and no padded row counted."""
    sizes: dict[int, int] = {}
    for e, f, row_mask in projections:
        for x in (e, f):
            sizes[id(x)] = x.size if row_mask is None else int(row_mask.sum()) * x.shape[-1]
    return sum(sizes.values())


def distinct_gradients(projections: Sequence[Projection], gradients: Sequence[Any]) -> list[tuple[Array, Array]]:
    """Each distinct matrix with its gradient: the sum over every place (layer, key or value) where it is used.

    Parameters
    ----------
    projections : sequence of Projection, one a layer
    gradients : sequence of linformer.Gradients, one a layer
    """
    total: dict[int, tuple[Array, Array]] = {}
    for projection, gradient in zip(projections, gradients, strict=True):
        for x, d_x in ((projection.e, gradient.e), (projection.f, gradient.f)):
            total[id(x)] = (x, total[id(x)][1] + d_x if id(x) in total else d_x)
    return list(total.values())


def _rows_of_each_head(length: int, reduced: ArrayLike, layers: int, heads: int, sharing: str) -> NDArray[np.int64]:
    check_sizes(length=length, layers=layers, heads=heads)
    rows = np.asarray(reduced)
    if rows.dtype.kind not in "iu" or rows.shape not in ((), (layers,), (layers, heads)):
        raise ValueError(
            f"reduced: expected an integer, ({layers},) integers (one a layer) or ({layers}, {heads}) (one a layer and"
            f" head), got shape {rows.shape} of {rows.dtype}"
        )
    if rows.min() < 1 or rows.max() > length:
        raise ValueError(f"reduced: expected 1 <= R <= L = {length}, got {rows.min()} to {rows.max()}")
    rows = np.broadcast_to(rows[:, None] if rows.ndim == 1 else rows, (layers, heads))
    if sharing != "none" and (rows != rows[:, :1]).any():
        raise ValueError(f"reduced: heads that share a matrix have one R, got a different R by head with {sharing!r}")
    if sharing == "layerwise" and (rows != rows[0, 0]).any():
        raise ValueError("reduced: layers that share a matrix have one R, got a different R by layer with 'layerwise'")
    return rows


def _pad(e: list[Array], f: list[Array]) -> Projection:
    """The heads' matrices stacked, ``(H, R, L)``, those with fewer rows padded with zeros that ``row_mask`` hides."""
    rows = np.array([len(x) for x in e])
    largest = rows.max()
    e_all, f_all = (np.stack([np.pad(x, ((0, largest - len(x)), (0, 0))) for x in each]) for each in (e, f))
    return Projection(e_all, f_all, None if (rows == largest).all() else np.arange(largest) < rows[:, None])


# --- Pooling --------------------------------------------------------------------------------------------------------


def mean_pool(reduced: int, length: int, dtype: DTypeLike = np.float64) -> Array:
    """Mean pooling as a projection ``(R, L)`` for ``e`` and ``f``: row ``r`` averages segment ``r``."""
    bounds = segment_bounds(length, reduced)
    e = np.zeros((reduced, length), dtype)
    for row, (start, end) in zip(e, pairwise(bounds), strict=True):
        row[start:end] = 1 / (end - start)
    return e


class MaxPoolSaved(NamedTuple):
    """Which key gave each maximum."""

    position: NDArray[np.int64]  # (..., R, W), in the sequence
    found: Mask  # (..., R, 1), False where a segment has no unmasked key
    length: int


def max_pool(x: Array, reduced: int, *, key_mask: Mask | None = None) -> tuple[Array, MaxPoolSaved]:
    """Max pooling: ``y_rw = max over segment r of x_jw``, ``(..., L, W) -> (..., R, W)``.

    Masked keys take no part; a segment without any other key gives 0.
    """
    check_array("x", x)
    check_key_mask(key_mask, x)
    bounds = segment_bounds(x.shape[-2], reduced)
    open_x = x if key_mask is None else np.where(key_mask[..., None], x, -np.inf)
    position = np.stack(
        [start + open_x[..., start:end, :].argmax(axis=-2) for start, end in pairwise(bounds)],
        axis=-2,
    )  # (..., R, W)
    found = np.ones((*x.shape[:-2], reduced, 1), np.bool_)
    if key_mask is not None:
        found = np.logical_or.reduceat(key_mask, bounds[:-1], axis=-1)[..., None]
    pooled = np.where(found, np.take_along_axis(x, position, axis=-2), x.dtype.type(0))
    return pooled, MaxPoolSaved(position, found, x.shape[-2])


def max_pool_backward(d_pooled: Array, saved: MaxPoolSaved) -> Array:
    """Gradient of ``x`` ``(..., L, W)``: each maximum's gradient goes to the key that gave it (the first of equals)."""
    position, found, length = saved
    check_array("d_pooled", d_pooled)
    check_shape("d_pooled", d_pooled, position.shape, "(..., R, W)")
    d_x = np.zeros((*position.shape[:-2], length, position.shape[-1]), d_pooled.dtype)
    np.put_along_axis(d_x, position, np.where(found, d_pooled, d_pooled.dtype.type(0)), axis=-2)
    return d_x


# --- Strided convolution --------------------------------------------------------------------------------------------


class ConvolutionSaved(NamedTuple):
    """The sequence cut into windows, and the weight."""

    windows: Array  # (..., R, K * W)
    weight: Array  # (K, W, W')
    key_mask: Mask | None  # (..., L)
    length: int


def convolution(x: Array, weight: Array, *, key_mask: Mask | None = None) -> tuple[Array, ConvolutionSaved]:
    """Convolution whose kernel width is its stride: ``y_r = sum_t x_(rK + t) weight_t``.

    Parameters
    ----------
    x : ndarray ``(..., L, W)``
        Masked rows count as 0; where ``K`` does not divide ``L``, zeros follow the end.
    weight : ndarray ``(K, W, W')``
        One matrix a position in the window; shared by all leading axes.
    key_mask : ndarray of bool ``(..., L)``, optional

    Returns
    -------
    y : ndarray ``(..., R, W')``, ``R = ceil(L / K)``
    saved : ConvolutionSaved
    """
    check_array("x", x)
    check_key_mask(key_mask, x)
    check_array("weight", weight, ndim=3, dtype=x.dtype)
    *leading, length, width = x.shape
    kernel = weight.shape[0]
    check_shape("weight", weight, (kernel, width, weight.shape[-1]), "(K, W, W')")
    reduced = -(-length // kernel)
    padding = [(0, 0)] * len(leading) + [(0, reduced * kernel - length), (0, 0)]
    windows = np.pad(zero_masked(x, key_mask), padding).reshape(*leading, reduced, kernel * width)
    y = windows @ weight.reshape(kernel * width, -1)  # (..., R, W')
    return y, ConvolutionSaved(windows, weight, key_mask, length)


def convolution_backward(d_y: Array, saved: ConvolutionSaved) -> tuple[Array, Array]:
    """Gradients of ``x`` ``(..., L, W)`` and ``weight`` ``(K, W, W')``: the two products of a linear layer."""
    windows, weight, key_mask, length = saved
    kernel, width, out_width = weight.shape
    flat = weight.reshape(kernel * width, out_width)
    d_windows = d_y @ flat.T  # (..., R, K * W)
    d_x = d_windows.reshape(*d_y.shape[:-2], -1, width)[..., :length, :]  # (..., L, W)
    d_weight = windows.reshape(-1, kernel * width).T @ d_y.reshape(-1, out_width)  # (K * W, W')
    return zero_masked(d_x, key_mask), d_weight.reshape(weight.shape)
