"""Positions and blocks that a caller names, checked: each once, negative ones counted from the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from linattn_ref.attention.sparse.part import Indices

__all__ = ["distinct_indices", "random_rows"]


def distinct_indices(name: str, indices: Any, length: int) -> Indices:
    """Positions below ``length`` in order, each once; there may be none."""
    found = _integers(name, indices)
    if found.ndim != 1:
        raise ValueError(f"{name}: expected a sequence of integers, got shape {found.shape}")
    return np.unique(_in_range(name, found, length))


def random_rows(random_blocks: Any, n_blocks: int, global_blocks: Indices) -> Indices:
    """``random_blocks (blocks, r)``, with the numbers of global blocks in their own rows, which are ignored."""
    if random_blocks is None:
        return np.zeros((n_blocks, 0), np.intp)
    found = _integers("random_blocks", random_blocks).copy()
    if found.ndim != 2 or len(found) != n_blocks:
        raise ValueError(f"random_blocks: expected shape (blocks, r) with blocks = {n_blocks}, got {found.shape}")
    found[global_blocks] = global_blocks[:, None]
    return _in_range("random_blocks", found, n_blocks)


def _integers(name: str, indices: Any) -> Indices:
    if not isinstance(indices, np.ndarray | Sequence) or isinstance(indices, str):
        raise TypeError(f"{name}: expected a sequence or array of integers, got {indices!r}")
    try:
        found = np.asarray(indices)
    except ValueError as error:  # ragged
        raise ValueError(f"{name}: expected an array of integers, got {indices!r}") from error
    if found.size == 0 and found.dtype.kind == "f":  # an empty list has no dtype of its own
        found = found.astype(np.intp)
    if found.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integers, got {found.dtype}")
    if found.dtype == np.uint64:  # out of range, and not wrapped around into it
        found = np.minimum(found, np.uint64(np.iinfo(np.intp).max))
    return found.astype(np.intp)


def _in_range(name: str, indices: Indices, length: int) -> Indices:
    wrong = indices[(indices < -length) | (indices >= length)]
    if wrong.size:
        raise ValueError(f"{name}: expected indices from {-length} to {length - 1}, got {wrong.flat[0]}")
    return indices % length
