"""What the sparse mechanisms and `patterns` check at their doors: arguments, patterns, and what those are made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from linattn_ref.attention.arguments import (
    Array,
    Mask,
    check_bool,
    check_qk,
    check_qkv,
    check_sizes,
    name_of,
    resolve_scale,
)
from linattn_ref.attention.rooms import check_kernels
from linattn_ref.kernels import parts, reference
from linattn_ref.kernels.parts import Part

__all__ = [
    "KINDS",
    "Kind",
    "check_forward",
    "check_kind",
    "check_matrix",
    "check_pattern",
    "check_square",
    "check_window_blocks",
    "check_with_pattern",
    "distinct_indices",
    "resolve_random_blocks",
]

Kind = Literal["strided", "fixed", "local_only", "strided_only", "fixed_summary"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def check_forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    key_mask: Mask | None = None,
    scale: float | None = None,
    pattern: parts.Pattern | None = None,
    kernels: Any = reference,
    **_: Any,
) -> None:
    """The arguments that all sparse mechanisms share. What a pattern is built from, their ``parts_of`` checks."""
    check_qkv(q, k, v, causal=causal, key_mask=key_mask)
    check_kernels(kernels, "pattern_softmax")
    resolve_scale(scale, q.shape[-1])
    if pattern is not None:
        check_pattern(pattern, q.shape[-2], k.shape[-2])


def check_with_pattern(q: Array, k: Array, v: Array, pattern: parts.Pattern, **options: Any) -> None:
    """The arguments of softmax over a pattern, which has to be there."""
    check_forward(q, k, v, **options)
    check_pattern(pattern, q.shape[-2], k.shape[-2])


def check_matrix(
    q: Array,
    k: Array,
    allowed: Mask | None = None,
    *,
    causal: bool = False,
    key_mask: Mask | None = None,
    scale: float | None = None,
    **_: Any,
) -> None:
    """The arguments of :func:`matrix`, and those that it shares with the mechanisms' own."""
    check_qk(q, k, causal=causal, key_mask=key_mask)
    resolve_scale(scale, q.shape[-1])
    if allowed is not None:
        check_bool("allowed", allowed)
        if allowed.shape != (q.shape[-2], k.shape[-2]):
            raise ValueError(f"allowed: expected shape (N, L) = {(q.shape[-2], k.shape[-2])}, got {allowed.shape}")


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
