"""Where Linformer's mixed keys come from, as matrices: learned ones, shared in four ways, and mean pooling.

Wang et al. (2020), section 4, "Additional efficiency techniques". A learned projection ``(R, L)`` is drawn by
:func:`draw_projections`; mean pooling is a matrix too (:func:`mean_pool`). `max_pool` and `strided_convolution` are
functions of the sequence instead, with modules of their own.

Example
-------
>>> import numpy as np
>>> print(mean_pool(2, 5).round(2))
[[0.33 0.33 0.33 0.   0.  ]
 [0.   0.   0.   0.5  0.5 ]]
>>> layers = draw_projections(2, 5, np.random.default_rng(0), layers=12, heads=8, sharing="key_value")
>>> layers[0].e.shape, layers[0].e is layers[0].f, parameter_count(layers)
((2, 5), True, 120)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from linattn_ref.attention.parts.segment_means import segment_bounds
from linattn_ref.op import Array, Mask, op
from linattn_ref.op.options import check_choice, check_sizes

__all__ = ["SHARING", "Projection", "Sharing", "distinct_gradients", "draw_projections", "mean_pool", "parameter_count"]

Sharing = Literal["none", "headwise", "key_value", "layerwise"]
SHARING: tuple[Sharing, ...] = get_args(Sharing)


# --- Learned matrices -----------------------------------------------------------------------------------------------


class Projection(NamedTuple):
    """The projections of one layer, as ``linformer.forward`` takes them. Shared matrices are the same array."""

    e: Array  # (R, L), or (H, R, L) with sharing "none"
    f: Array  # like e
    row_mask: Mask | None  # (H, R), where the heads have a different R and are padded to the largest


@op
def draw_projections(
    reduced: ArrayLike,
    length: int,
    rng: np.random.Generator,
    *,
    layers: int,
    heads: int,
    sharing: Sharing = "none",
    dtype: DTypeLike = np.float64,
) -> list[Projection]:
    """Random projections with entries N(0, 1/R) for every layer, shared as the paper lists.

    Parameters
    ----------
    reduced : int, or ints ``(layers,)``, or ``(layers, heads)``
        ``R``; one per layer, or one per layer and head (``sharing="none"`` only).
    length : int
        Number of keys ``L``.
    rng : numpy.random.Generator
    layers, heads : int
    sharing : {"none", "headwise", "key_value", "layerwise"}
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
    list of Projection, one per layer
    """
    check_choice("sharing", sharing, SHARING)
    rows = _rows_of_each_head(reduced, length, layers, heads, sharing)  # (layers, heads)

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
    for e, f, row_mask in [*projections]:  # a list: while the arrays live, no two have the same id
        for x in (e, f):
            sizes[id(x)] = x.size if row_mask is None else int(row_mask.sum()) * x.shape[-1]
    return sum(sizes.values())


def distinct_gradients(projections: Sequence[Projection], gradients: Sequence[Any]) -> list[tuple[Array, Array]]:
    """Each distinct matrix with its gradient: the sum over every place (layer, key or value) where it is used.

    Parameters
    ----------
    projections : sequence of Projection, one per layer
    gradients : sequence of linformer.Gradients, one per layer
    """
    if len(projections) != len(gradients):
        raise ValueError(f"gradients: expected one per layer, {len(projections)}, got {len(gradients)}")
    total: dict[int, tuple[Array, Array]] = {}
    for projection, gradient in zip(projections, gradients, strict=True):
        for x, d_x in ((projection.e, gradient.e), (projection.f, gradient.f)):
            total[id(x)] = (x, total[id(x)][1] + d_x if id(x) in total else d_x)
    return list(total.values())


def _rows_of_each_head(reduced: ArrayLike, length: int, layers: int, heads: int, sharing: Sharing) -> NDArray[np.int64]:
    check_sizes(length=length, layers=layers, heads=heads)
    try:
        rows = np.asarray(reduced)
    except ValueError:  # ragged
        rows = np.asarray(reduced, object)
    if rows.dtype.kind not in "iu" or rows.shape not in ((), (layers,), (layers, heads)):
        raise ValueError(
            f"reduced: expected an integer, ({layers},) integers (one per layer) or ({layers}, {heads}) (one per"
            f" layer and head), got shape {rows.shape} of {rows.dtype}"
        )
    if rows.min() < 1 or rows.max() > length:
        raise ValueError(f"reduced: expected 1 <= R <= L = {length}, got {rows.min()} to {rows.max()}")
    rows = np.broadcast_to(rows[:, None] if rows.ndim == 1 else rows, (layers, heads)).astype(np.int64)
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


# --- Mean pooling ---------------------------------------------------------------------------------------------------


@op
def mean_pool(reduced: int, length: int, dtype: DTypeLike = np.float64) -> Array:
    """Mean pooling as a projection ``(R, L)`` for ``e`` and ``f``: row ``r`` averages segment ``r``."""
    counts = np.diff(segment_bounds(length, reduced))
    return np.repeat(np.diag(1 / counts), counts, axis=1).astype(dtype)
