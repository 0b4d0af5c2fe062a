"""Which query sees which key, as boolean matrices: the sparse mechanisms drawn out, for teaching and testing.

Every function gives an ``(N, N)`` array, True at ``[i, j]`` where query ``i`` may look at key ``j``. Nothing else in
the package makes such an array: the mechanisms themselves (``local``, ``longformer``, ``bigbird``,
``sparse_transformer``) work from a compact list of what is allowed (`linattn_ref.kernels.parts`). With

    P = softmax over the allowed j of scale q_i . k_j        (1)  0 elsewhere

:func:`matrix` is the dense oracle of each of them. A pair that is allowed for two reasons, as a key in the window that
is global too, counts once: the softmax is over a *set* of keys.

References
----------
Child et al. (2019), "Generating long sequences with sparse Transformers", section 4.2.
Beltagy et al. (2020), "Longformer: the long-document Transformer", section 3.1 and Figure 2.
Zaheer et al. (2020), "Big Bird: Transformers for longer sequences", section 2 and Figure 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linattn_ref.attention.arguments import (
    Array,
    Mask,
    check_bool,
    check_qk,
    check_sizes,
    resolve_scale,
)
from linattn_ref.attention.masks import zero_masked

KINDS = ("strided", "fixed", "local_only", "strided_only", "fixed_summary")


# --- Windows and blocks ---------------------------------------------------------------------------------------------


def local(n: int, *, window: int, dilation: int = 1, causal: bool = False) -> Mask:
    """Sliding window: ``|i - j| <= window * dilation`` in steps of ``dilation``; ``j <= i`` too if causal.

    Parameters
    ----------
    n : int
        ``N``.
    window : int
        Keys on each side; ``2 window + 1`` with the query's own place.
    dilation : int
        The step from one key to the next; 1 for no gaps.
    causal : bool

    Returns
    -------
    ndarray of bool ``(N, N)``

    Raises
    ------
    ValueError
        A size is not an integer of at least 1; which.
    """
    check_sizes(n=n, window=window, dilation=dilation)
    difference = _difference(n)  # (N, N)
    near = (abs(difference) <= window * dilation) & (difference % dilation == 0)
    return near & (difference >= 0) if causal else near


def block_local(n: int, *, block: int, causal: bool = False) -> Mask:
    """Blocks of width ``block`` that see themselves: ``i // block == j // block``; the last one may be shorter."""
    check_sizes(n=n, block=block)
    number = np.arange(n) // block
    same = number[:, None] == number  # (N, N)
    return same & (_difference(n) >= 0) if causal else same


# --- Longformer -----------------------------------------------------------------------------------------------------


def longformer(n: int, *, window: int, global_tokens: Any, dilation: int = 1) -> Mask:
    """A sliding window, and global tokens that see all and are seen by all.

    Parameters
    ----------
    n, window, dilation
        As in :func:`local`.
    global_tokens : sequence of int or ndarray of integers
        Positions, negative ones counted from the end; one given twice is one. May be empty.
    """
    allowed = local(n, window=window, dilation=dilation)
    tokens = distinct_indices("global_tokens", global_tokens, n)
    allowed[tokens, :] = True
    allowed[:, tokens] = True
    return allowed


# --- BigBird --------------------------------------------------------------------------------------------------------


def bigbird(
    n: int, *, block: int, window_blocks: int = 3, global_blocks: Any = (0, -1), random_blocks: Any = None
) -> Mask:
    """A window of blocks, global blocks that see all and are seen by all, and random blocks.

    Parameters
    ----------
    n : int
        ``N``; the last block may be shorter.
    block : int
        Tokens a block.
    window_blocks : int
        Blocks in the window, the query's own in the middle: an odd number.
    global_blocks : sequence of int
        Blocks, negative ones counted from the end; may be empty, or name one block twice.
    random_blocks : ndarray of integers ``(blocks, r)``, optional
        The blocks that each block of queries sees besides. Rows of global blocks are ignored.

    Returns
    -------
    ndarray of bool ``(N, N)``
    """
    check_sizes(n=n, block=block)
    blocks = bigbird_blocks(-(-n // block), window_blocks, global_blocks, random_blocks)
    number = np.arange(n) // block
    return blocks[number[:, None], number]  # (N, N)


def bigbird_blocks(n_blocks: int, window_blocks: int, global_blocks: Any, random_blocks: Any) -> Mask:
    """Which block of queries sees which block of keys, ``(blocks, blocks)``: :func:`bigbird` with blocks of one token.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it got and what it needs.
    """
    check_sizes(n_blocks=n_blocks)
    check_window_blocks(window_blocks)
    allowed = abs(_difference(n_blocks)) <= window_blocks // 2
    whole = distinct_indices("global_blocks", global_blocks, n_blocks)
    drawn = resolve_random_blocks(random_blocks, n_blocks, whole)
    allowed[np.arange(n_blocks)[:, None], drawn] = True
    allowed[whole, :] = True
    allowed[:, whole] = True
    return allowed


# --- Sparse Transformer ---------------------------------------------------------------------------------------------


def sparse_transformer(n: int, *, kind: str, stride: int, summary: int = 1) -> Mask:
    """The causal patterns of Sparse Transformers, with ``l = stride`` and ``c = summary``.

    ==================  ============================================================
    ``strided``         ``j > i - l`` or ``(i - j) mod l == 0``
    ``local_only``      the first of these alone
    ``strided_only``    the second alone
    ``fixed``           the same block of ``l``, or ``j mod l >= l - c``
    ``fixed_summary``   the second of these alone (the first is :func:`block_local`)
    ==================  ============================================================

    (With ``j <= i`` everywhere. The paper's first head of the strided pattern has one key more, ``j = i - l``, which
    is in the second head too.)

    Raises
    ------
    ValueError
        An unknown ``kind``; a size that is not an integer of at least 1; ``summary > stride``.
    """
    check_sizes(n=n)
    check_kind(kind, stride, summary)
    i, j = np.arange(n)[:, None], np.arange(n)
    window, column = j > i - stride, (i - j) % stride == 0  # (N, N)
    block, summaries = i // stride == j // stride, j % stride >= stride - summary
    allowed: Mask = {
        "strided": window | column,
        "local_only": window,
        "strided_only": column,
        "fixed": block | summaries,
        "fixed_summary": np.broadcast_to(summaries, (n, n)),
    }[kind]
    return allowed & (j <= i)


# --- The dense oracle -----------------------------------------------------------------------------------------------


def matrix(q: Array, k: Array, allowed: Mask, *, key_mask: Mask | None = None, scale: float | None = None) -> Array:
    """Softmax over the allowed keys, equation (1): the dense matrix ``(..., N, L)`` of any pattern.

    Parameters
    ----------
    q, k : ndarray, ``(..., N, D)``, ``(..., L, D)``, float32 or float64
    allowed : ndarray of bool ``(N, L)``
    key_mask : ndarray of bool ``(..., L)``, optional
        True = may be attended.
    scale : float, optional
        ``1/sqrt(D)`` unless given.

    Returns
    -------
    ndarray ``(..., N, L)``
        Exactly 0 where a pair is not allowed; a query that sees nothing has a row of zeros.
    """
    check_qk(q, k, key_mask=key_mask)
    check_bool("allowed", allowed)
    if allowed.shape != (q.shape[-2], k.shape[-2]):
        raise ValueError(f"allowed: expected shape (N, L) = {(q.shape[-2], k.shape[-2])}, got {allowed.shape}")
    scores = (resolve_scale(scale, q.shape[-1]) * q) @ zero_masked(k, key_mask).swapaxes(-1, -2)  # (..., N, L)
    if key_mask is not None:
        allowed = allowed & key_mask[..., None, :]  # (..., N, L)
    scores = np.where(allowed, scores, q.dtype.type(-np.inf))
    row_max = scores.max(axis=-1, keepdims=True)  # (..., N, 1)
    weights = np.exp(scores - np.where(np.isneginf(row_max), q.dtype.type(0), row_max))
    row_sum = weights.sum(axis=-1, keepdims=True)  # (..., N, 1), 0 where a query sees nothing
    return weights / np.where(row_sum == 0, q.dtype.type(1), row_sum)  # (1)


# --- Arguments ------------------------------------------------------------------------------------------------------


def distinct_indices(name: str, indices: Any, length: int) -> NDArray[np.intp]:
    """Positions below ``length``, negative ones counted from the end: in order, each once; there may be none.

    Raises
    ------
    TypeError, ValueError
        Not a sequence of integers, or one that is out of range; ``name`` says which argument.
    """
    found = _integers(name, indices)
    if found.ndim != 1:
        raise ValueError(f"{name}: expected a sequence of integers, got shape {found.shape}")
    return np.unique(_in_range(name, found, length))


def resolve_random_blocks(random_blocks: Any, n_blocks: int, global_blocks: NDArray[np.intp]) -> NDArray[np.intp]:
    """``random_blocks`` checked, ``(blocks, r)``; the rows of global blocks, which are ignored, name their own block.

    Raises
    ------
    TypeError, ValueError
        Not integers, of another shape, or a block that is not there.
    """
    if random_blocks is None:
        return np.zeros((n_blocks, 0), np.intp)
    found = _integers("random_blocks", random_blocks).copy()
    if found.ndim != 2 or len(found) != n_blocks:
        raise ValueError(f"random_blocks: expected shape (blocks, r) with blocks = {n_blocks}, got {found.shape}")
    found[global_blocks] = global_blocks[:, None]
    return _in_range("random_blocks", found, n_blocks)


def check_window_blocks(window_blocks: int) -> None:
    """An odd number of blocks: as many on one side of the query's own as on the other."""
    check_sizes(window_blocks=window_blocks)
    if window_blocks % 2 == 0:
        raise ValueError(
            f"window_blocks: expected an odd number, the query's own block is in the middle, got {window_blocks}"
        )


def check_square(q: Array, k: Array) -> None:
    """As many keys as queries: the pattern is one of positions, and query and key of a token have the same."""
    if q.shape[-2] != k.shape[-2]:
        raise ValueError(f"k: expected as many keys as queries, L = N = {q.shape[-2]}, got L = {k.shape[-2]}")


def check_kind(kind: str, stride: int, summary: int) -> None:
    """A pattern of :func:`sparse_transformer`; a block has at least as many places as it has summaries."""
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    check_sizes(stride=stride, summary=summary)
    if summary > stride:
        raise ValueError(f"summary: expected at most stride = {stride}, got {summary}")


def _difference(n: int) -> NDArray[np.intp]:
    """``i - j``, ``(N, N)``."""
    return np.arange(n)[:, None] - np.arange(n)


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
