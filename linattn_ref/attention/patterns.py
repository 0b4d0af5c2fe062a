"""Which query sees which key, as boolean matrices: the sparse mechanisms drawn out, for teaching and testing.

Every function gives an ``(N, N)`` array, True at ``[i, j]`` where query ``i`` may look at key ``j``. Nothing else in
the package makes such an array: the mechanisms themselves (``local``, ``longformer``, ``bigbird``,
``sparse_transformer``) work from a compact list of what is allowed (`linattn_ref.kernels.parts`). With

    P = softmax over the allowed j of scale q_i . k_j        (1)  0 elsewhere

:func:`matrix` is the dense oracle of each of them. A pair that is allowed for two reasons, as a key in the window that
is global too, counts once: the softmax is over a *set* of keys.

Example
-------
>>> import numpy as np
>>> seen = local(4, window=1)
>>> print(seen.astype(int))
[[1 1 0 0]
 [1 1 1 0]
 [0 1 1 1]
 [0 0 1 1]]
>>> print(matrix(np.zeros((4, 2)), np.zeros((4, 2)), seen).round(2))  # where all scores are equal
[[0.5  0.5  0.   0.  ]
 [0.33 0.33 0.33 0.  ]
 [0.   0.33 0.33 0.33]
 [0.   0.   0.5  0.5 ]]

References
----------
Child et al. (2019), "Generating long sequences with sparse Transformers", section 4.3.
Beltagy et al. (2020), "Longformer: the long-document Transformer", section 3.1 and Figure 2.
Zaheer et al. (2020), "Big Bird: Transformers for longer sequences", section 2 and Figure 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from linattn_ref.attention.arguments import Array, Mask, check_sizes, resolve_scale
from linattn_ref.attention.door import door
from linattn_ref.attention.masks import zero_masked
from linattn_ref.attention.pattern_checks import (
    KINDS,
    Kind,
    check_kind,
    check_matrix,
    check_window_blocks,
    distinct_indices,
    resolve_random_blocks,
)
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.kernels.reference.saturation import saturate

__all__ = ["KINDS", "Kind", "bigbird", "block_local", "local", "longformer", "matrix", "sparse_transformer"]


# --- Windows and blocks ---------------------------------------------------------------------------------------------


@plain_numbers
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


@plain_numbers
def block_local(n: int, *, block: int, causal: bool = False) -> Mask:
    """Blocks of width ``block`` that see themselves: ``i // block == j // block``; the last one may be shorter."""
    check_sizes(n=n, block=block)
    number = np.arange(n) // block
    same = number[:, None] == number  # (N, N)
    return same & (_difference(n) >= 0) if causal else same


# --- Longformer -----------------------------------------------------------------------------------------------------


@plain_numbers
def longformer(n: int, *, window: int, global_tokens: ArrayLike, dilation: int = 1) -> Mask:
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


@plain_numbers
def bigbird(
    n: int,
    *,
    block: int,
    window_blocks: int = 3,
    global_blocks: ArrayLike = (0, -1),
    random_blocks: ArrayLike | None = None,
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


@plain_numbers
def bigbird_blocks(
    n_blocks: int, window_blocks: int, global_blocks: ArrayLike, random_blocks: ArrayLike | None
) -> Mask:
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


@plain_numbers
def sparse_transformer(n: int, *, kind: Kind, stride: int, summary: int = 1) -> Mask:
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


@door(check_matrix)
def matrix(q: Array, k: Array, allowed: Mask, *, key_mask: Mask | None = None, scale: float | None = None) -> Array:
    """Softmax over the allowed keys, equation (1): the dense matrix ``(..., N, L)`` of any pattern.

    Exactly 0 where a pair is not in ``allowed (N, L)``; a query that sees nothing has a row of zeros.
    """
    k = zero_masked(k, key_mask)
    scores = saturate((resolve_scale(scale, q.shape[-1]) * q) @ k.swapaxes(-1, -2), q, k)  # (..., N, L)
    allowed = np.asarray(allowed, like=scores)
    if key_mask is not None:
        allowed = allowed & key_mask[..., None, :]  # (..., N, L)
    scores = np.where(allowed, scores, q.dtype.type(-np.inf))
    row_max = scores.max(axis=-1, keepdims=True)  # (..., N, 1)
    weights = np.exp(scores - np.where(np.isneginf(row_max), q.dtype.type(0), row_max))
    row_sum = weights.sum(axis=-1, keepdims=True)  # (..., N, 1), 0 where a query sees nothing
    return weights / np.where(row_sum == 0, q.dtype.type(1), row_sum)  # (1)


# --- Positions ------------------------------------------------------------------------------------------------------


def rows_of(square: Mask, n: int, n_keys: int, *, causal: bool) -> Mask:
    """The pattern of ``N`` queries and ``L`` keys: the first of each, or if causal the last queries; ``(N, L)``."""
    return square[n_keys - n :] if causal else square[:n, :n_keys]


def _difference(n: int) -> NDArray[np.intp]:
    """``i - j``, ``(N, N)``."""
    return np.arange(n)[:, None] - np.arange(n)
