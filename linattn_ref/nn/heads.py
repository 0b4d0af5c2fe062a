"""Columns as heads: ``(B, N, H D)`` seen as ``(B, H, N, D)``, for each array that a mechanism reads.

A projection ``(B, N, P)`` has the columns of all of them side by side, of queries and keys ``D`` per head, of values
``M``. Both follow from the shapes of the parameters: ``W_o`` has ``H M`` rows.

One token, of which two query heads and one key head have two columns each:

>>> q, k = split(np.arange(6.0).reshape(1, 1, 6), Part(2, 2), Part(1, 2))
>>> q.tolist(), k.tolist()
([[[[0.0, 1.0]], [[2.0, 3.0]]]], [[[[4.0, 5.0]]]])
>>> merge(q, k).tolist()
[[[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]]]
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.nn import affine
from linattn_ref.nn.mechanism import Mechanism
from linattn_ref.op import Array

__all__ = ["Part", "cut", "merge", "parts_of", "split"]


class Part(NamedTuple):
    """One of the arrays that a mechanism reads."""

    heads: int
    width: int  # of a head


def parts_of(params: Any, mechanism: Mechanism, heads: int) -> tuple[Part, ...]:
    """The arrays that the mechanism reads: queries and keys of D columns, values of M; shared heads are fewer."""
    names, few = mechanism.accepts["forward"][: mechanism.reads], heads // mechanism.options.get("groups", 1)
    counts = [heads if name.startswith("q") else few for name in names]
    values = sum(count for name, count in zip(names, counts, strict=True) if name.startswith("v"))
    m = params.outer.w.shape[0] // heads
    d = (params.inner.w.shape[1] - m * values) // (sum(counts) - values)
    return tuple(Part(count, m if name.startswith("v") else d) for name, count in zip(names, counts, strict=True))


def cut(inner: affine.Params, parts: tuple[Part, ...]) -> tuple[affine.Params, affine.Params]:
    """The projection of queries, and that of keys and values."""
    columns = parts[0].heads * parts[0].width
    return affine.Params(*(x[..., :columns] for x in inner)), affine.Params(*(x[..., columns:] for x in inner))


def split(x: Array, *parts: Part) -> list[Array]:
    """``(B, N, P)`` as views ``(B, H, N, D)``, one for each part of its columns."""
    ends = accumulate(heads * width for heads, width in parts)
    return [
        x[..., end - heads * width : end].reshape(*x.shape[:-1], heads, width).swapaxes(1, 2)
        for end, (heads, width) in zip(ends, parts, strict=True)
    ]


def merge(*parts: Array) -> Array:
    """``(B, H, N, D)``, each of them, as ``(B, N, H D)``, side by side."""
    rows = [part.swapaxes(1, 2) for part in parts]  # (B, N, H, D)
    if len(rows) == 1:
        return rows[0].reshape(*rows[0].shape[:2], -1)
    shapes = [Part(*row.shape[2:]) for row in rows]
    merged = np.empty_like(rows[0], shape=(*rows[0].shape[:2], sum(heads * width for heads, width in shapes)))
    for view, part in zip(split(merged, *shapes), parts, strict=True):
        view[...] = part
    return merged
