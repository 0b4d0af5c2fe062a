"""What patterns are made from, checked: indices, blocks, kinds. `patterns` and the sparse mechanisms share it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from linattn_ref.attention.arguments import Array, check_sizes, name_of
from linattn_ref.kernels.parts import Part

__all__ = [
    "KINDS",
    "Kind",
    "check_kind",
    "check_pattern",
    "check_square",
    "check_window_blocks",
    "distinct_indices",
    "resolve_random_blocks",
]

Kind = Literal["strided", "fixed", "local_only", "strided_only", "fixed_summary"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def check_pattern(pattern: Any, n: int, n_keys: int) -> None:
    """``pattern`` is what a mechanism's ``parts_of`` gives, for ``N`` queries and ``L`` keys."""
    if not isinstance(pattern, tuple) or not all(isinstance(part, Part) for part in pattern):
        raise TypeError(
            "pattern: expected what a mechanism's parts_of gives, a tuple of linattn_ref.kernels.parts.Part,"
            f" got a {name_of(type(pattern))}"
        )
    for part in pattern:
        if (len(part.queries), part.n_keys) != (n, n_keys):
            raise ValueError(
                f"pattern: expected one for N = {n} and L = {n_keys},"
                f" got one for N = {len(part.queries)} and L = {part.n_keys}"
            )


def check_square(q: Array, k: Array) -> None:
    """As many keys as queries: the pattern is one of positions, and query and key of a token have the same."""
    if q.shape[-2] != k.shape[-2]:
        raise ValueError(f"k: expected as many keys as queries, L = N = {q.shape[-2]}, got L = {k.shape[-2]}")


def check_window_blocks(window_blocks: int) -> None:
    """An odd number of blocks: as many on one side of the query's own as on the other."""
    check_sizes(window_blocks=window_blocks)
    if window_blocks % 2 == 0:
        raise ValueError(
            f"window_blocks: expected an odd number, the query's own block is in the middle, got {window_blocks}"
        )


def check_kind(kind: Kind, stride: int, summary: int) -> None:
    """A pattern of a Sparse Transformer; a block has at least as many places as it has summaries."""
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    check_sizes(stride=stride, summary=summary)
    if summary > stride:
        raise ValueError(f"summary: expected at most stride = {stride}, got {summary}")


# --- Indices --------------------------------------------------------------------------------------------------------


def distinct_indices(name: str, indices: Any, length: int) -> NDArray[np.intp]:
    """Positions below ``length``, negative ones counted from the end: in order, each once; there may be none."""
    found = _integers(name, indices)
    if found.ndim != 1:
        raise ValueError(f"{name}: expected a sequence of integers, got shape {found.shape}")
    return np.unique(_in_range(name, found, length))


def resolve_random_blocks(random_blocks: Any, n_blocks: int, global_blocks: NDArray[np.intp]) -> NDArray[np.intp]:
    """``random_blocks`` checked, ``(blocks, r)``; rows of global blocks, which are ignored, name their own."""
    if random_blocks is None:
        return np.zeros((n_blocks, 0), np.intp)
    found = _integers("random_blocks", random_blocks).copy()
    if found.ndim != 2 or len(found) != n_blocks:
        raise ValueError(f"random_blocks: expected shape (blocks, r) with blocks = {n_blocks}, got {found.shape}")
    found[global_blocks] = global_blocks[:, None]
    return _in_range("random_blocks", found, n_blocks)


def _integers(name: str, indices: Any) -> NDArray[np.intp]:
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
    return found.astype(np.intp)


def _in_range(name: str, indices: NDArray[np.intp], length: int) -> NDArray[np.intp]:
    wrong = indices[(indices < -length) | (indices >= length)]
    if wrong.size:
        raise ValueError(f"{name}: expected indices from {-length} to {length - 1}, got {wrong.flat[0]}")
    return indices % length
