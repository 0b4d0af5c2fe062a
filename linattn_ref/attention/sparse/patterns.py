"""Which query sees which key, as boolean matrices: the sparse mechanisms drawn out, for teaching and testing.

Every pattern is an ``(N, N)`` array, True at ``[i, j]`` where query ``i`` may look at key ``j``. The sparse mechanisms
(``local``, ``block_local``, ``longformer``, ``bigbird``, ``sparse_transformer``) make no such array: they work from a
compact list of what is allowed (`part`). With

    P = softmax over the allowed j of scale q_i . k_j        (1)  0 elsewhere

:func:`matrix` is the dense oracle of each of them. A pair that is allowed for two reasons, as a key in the window that
is global too, counts once: the softmax is over a *set* of keys.

Example
-------
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

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from linattn_ref.attention.parts.masks import scores, shown
from linattn_ref.attention.softmax import softmax
from linattn_ref.attention.sparse.indices import distinct_indices, random_rows
from linattn_ref.op import Array, Bool, Float, Mask, op
from linattn_ref.op.options import check_choice, check_sizes, sized

__all__ = ["KINDS", "Kind", "bigbird", "block_local", "check_kind", "check_window_blocks", "local"]
__all__ += ["longformer", "matrix", "sparse_transformer"]

Kind = Literal["strided", "fixed", "local_only", "strided_only", "fixed_summary"]
KINDS: tuple[Kind, ...] = get_args(Kind)


# --- Windows and blocks ---------------------------------------------------------------------------------------------


look_local = sized("window", "dilation")


@op(look=look_local)
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
    difference = _difference(n)  # (N, N)
    near = (abs(difference) <= window * dilation) & (difference % dilation == 0)
    return near & (difference >= 0) if causal else near


@op(look=sized("block"))
def block_local(n: int, *, block: int, causal: bool = False) -> Mask:
    """Blocks of width ``block`` that see themselves: ``i // block == j // block``; the last one may be shorter."""
    number = np.arange(n) // block
    same = number[:, None] == number  # (N, N)
    return same & (_difference(n) >= 0) if causal else same


# --- Longformer -----------------------------------------------------------------------------------------------------


@op(look=look_local)
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


def look_bigbird(block: Any, window_blocks: Any = 3, **_: Any) -> None:
    check_sizes(block=block)
    check_window_blocks(window_blocks)


@op(look=look_bigbird)
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
        Tokens per block.
    window_blocks : int
        Blocks in the window, the query's own in the middle: an odd number.
    global_blocks : sequence of int
        Blocks, negative ones counted from the end; may be empty, or name one block twice.
    random_blocks : ndarray of integers ``(blocks, r)``, optional
        The blocks that each block of queries sees as well. Rows of global blocks are ignored.

    Returns
    -------
    ndarray of bool ``(N, N)``
    """
    n_blocks = -(-n // block)
    allowed = abs(_difference(n_blocks)) <= window_blocks // 2  # (blocks, blocks)
    whole = distinct_indices("global_blocks", global_blocks, n_blocks)
    drawn = random_rows(random_blocks, n_blocks, whole)
    allowed[np.arange(n_blocks)[:, None], drawn] = True
    allowed[whole, :] = True
    allowed[:, whole] = True
    number = np.arange(n) // block
    return allowed[number[:, None], number]  # (N, N)


def check_window_blocks(window_blocks: Any) -> None:
    """An odd number of blocks: as many on one side of the query's own as on the other."""
    check_sizes(window_blocks=window_blocks)
    if window_blocks % 2 == 0:
        raise ValueError(
            f"window_blocks: expected an odd number, the query's own block is in the middle, got {window_blocks}"
        )


# --- Sparse Transformer ---------------------------------------------------------------------------------------------


def check_kind(kind: Any, stride: Any, summary: Any, **_: Any) -> None:
    """A pattern of a Sparse Transformer; a block has at least as many places as it has summaries."""
    check_choice("kind", kind, KINDS)
    check_sizes(stride=stride, summary=summary)
    if summary > stride:
        raise ValueError(f"summary: expected at most stride = {stride}, got {summary}")


@op(look=check_kind)
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


@op
def matrix(
    q: Float[Array, "... N D"],
    k: Float[Array, "... L D"],
    allowed: Bool[Array, "N L"],
    *,
    key_mask: Bool[Array, "... L"] | None = None,
    scale: float | None = None,
) -> Array:
    """Softmax over the allowed keys, equation (1): the dense matrix ``(..., N, L)`` of any pattern.

    Exactly 0 where a pair is not in ``allowed (N, L)``; a query that sees nothing has a row of zeros.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    seen = np.logical_and(allowed, True if key_mask is None else key_mask[..., None, :])  # (..., N, L)
    return softmax(np.where(seen, scores(q, shown(k, key_mask), scale), q.dtype.type(-np.inf)))  # (1)


def _difference(n: int) -> NDArray[np.intp]:
    """``i - j``, ``(N, N)``."""
    return np.arange(n)[:, None] - np.arange(n)
