"""BigBird (Zaheer et al. 2020): in blocks, a sliding window, global blocks and a few random blocks.

Tokens are cut into blocks of ``b``; block ``B`` of queries sees the key blocks

    S_B = {all blocks}                                                   if B is global
    S_B = {|C - B| <= (window_blocks - 1) / 2} u {C global} u random_B   otherwise      (1)

and a query ``i`` in it every token of those:

    P_ij = exp(scale q_i . k_j) / sum_{l in S_B(i)} exp(scale q_i . k_l)                (2)
    O = P V                                                                             (3)

``S_B`` is a set: a block that is in it for two reasons counts once. With ``w`` blocks in the window, ``g`` global ones
and ``r`` random ones there are about ``N b (w + g + r) + N b g`` pairs. One global block is enough for every pair of
tokens to be two steps apart (``linattn_ref.theory.pattern_graphs``); the random blocks shorten the paths that do not
lead through it.

:Time: ``O(N b (w + g + r) max(D, M))``
:Memory: ``O(N M)``
:Causal: no
:Exact: over its pairs
:Gives: softmax attention over a window, global and random blocks

The gradient, by hand
---------------------
That of softmax attention, over the pairs that there are, with the row's log-sum-exp ``s_i``:

    P_ij = exp(scale q_i . k_j - s_i),   dA_ij = P_ij (dO_i . v_j - dO_i . o_i)         (4)
    dQ_i = scale sum_j dA_ij k_j,  dK_j = scale sum_i dA_ij q_i,  dV_j = sum_i P_ij dO_i      (5)

The random blocks are arguments, drawn beforehand by :func:`draw_random_blocks`; nothing is drawn in ``forward``.

Example
-------
Eight tokens in blocks of two, one block in the window and one global; all scores are equal. The block (4, 5) sees the
tokens 0, 1, 4 and 5, and one random block more, here (6, 7).

>>> import numpy as np
>>> x, v = np.zeros((8, 2)), np.arange(8.0)[:, None]
>>> options = {"block": 2, "window_blocks": 1, "global_blocks": [0]}
>>> forward(x, x, v, **options)[0].T
array([[3.5, 3.5, 1.5, 1.5, 2.5, 2.5, 3.5, 3.5]])
>>> out, saved = forward(x, x, v, **options, random_blocks=[[0], [0], [3], [0]])
>>> out[4]  # (0 + 1 + 4 + 5 + 6 + 7) / 6
array([3.83333333])
>>> backward(np.ones((8, 1)), saved).v.T.round(2)  # of the global block the largest
array([[1.58, 1.58, 0.75, 0.75, 0.58, 0.58, 1.08, 1.08]])

References
----------
Zaheer et al. (2020), "Big Bird: Transformers for longer sequences", section 2, appendix D and Figure 3 (in blocks).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from linattn_ref.attention import pattern_softmax, patterns
from linattn_ref.attention.arguments import Array, Mask, check_sizes
from linattn_ref.attention.door import door
from linattn_ref.attention.pattern_checks import (
    check_forward,
    check_matrix,
    check_square,
    check_window_blocks,
    distinct_indices,
    resolve_random_blocks,
)
from linattn_ref.attention.pattern_softmax import Gradients, Saved
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.attention.rooms import PatternSoftmaxRoom
from linattn_ref.kernels import parts, reference

__all__ = ["Gradients", "Saved", "backward", "draw_random_blocks", "forward", "matrix", "parts_of", "pattern"]


def _check_forward(q: Array, k: Array, v: Array, **options: Any) -> None:
    check_forward(q, k, v, **options)
    check_square(q, k)


@door(_check_forward)
def forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    block: int,
    window_blocks: int = 3,
    global_blocks: ArrayLike = (0, -1),
    random_blocks: ArrayLike | None = None,
    key_mask: Mask | None = None,
    scale: float | None = None,
    pattern: parts.Pattern | None = None,
    out: Array | None = None,
    kernels: PatternSoftmaxRoom = reference,
) -> tuple[Array, Saved]:
    """BigBird attention.

    Parameters
    ----------
    q, k, v, key_mask, scale, pattern, out, kernels
        The common arguments: ``help(linattn_ref.attention)``; ``L = N``.
    block : int
        Tokens a block; the last one may be shorter.
    window_blocks : int
        Blocks in the window, the query's own in the middle: an odd number.
    global_blocks : sequence of int
        Blocks that see all and are seen by all, negative ones counted from the end; one given twice is one. May be
        empty.
    random_blocks : ndarray of integers ``(blocks, r)``, optional
        The blocks that each block of queries sees besides, the same for all leading axes: see
        :func:`draw_random_blocks`. Rows of global blocks are ignored.
    """
    if pattern is None:
        pattern = parts_of(
            q.shape[-2],
            block=block,
            window_blocks=window_blocks,
            global_blocks=global_blocks,
            random_blocks=random_blocks,
        )  # (1)
    return pattern_softmax.forward.unchecked(
        q, k, v, pattern, key_mask=key_mask, scale=scale, out=out, kernels=kernels
    )  # (2), (3)


backward = pattern_softmax.backward  # (4), (5)


@plain_numbers
def parts_of(
    n: int,
    *,
    block: int,
    window_blocks: int = 3,
    global_blocks: ArrayLike = (0, -1),
    random_blocks: ArrayLike | None = None,
) -> parts.Pattern:
    """The sets ``S_B`` of equation (1) as one list of key blocks for each block of queries."""
    check_sizes(block=block)
    check_window_blocks(window_blocks)
    n_blocks, half = -(-n // block), window_blocks // 2
    whole = distinct_indices("global_blocks", global_blocks, n_blocks)
    drawn = resolve_random_blocks(random_blocks, n_blocks, whole)
    everything, is_whole = np.arange(n_blocks), np.isin(np.arange(n_blocks), whole)
    seen = [
        everything
        if is_whole[b]
        else np.concatenate([everything[max(0, b - half) : b + half + 1], whole, drawn[b]])  # (1)
        for b in range(n_blocks)
    ]
    return (parts.blocks(n, n, block, seen),)


@plain_numbers
def draw_random_blocks(
    n_blocks: int, r: int, rng: Generator, window_blocks: int = 3, global_blocks: ArrayLike = (0, -1)
) -> NDArray[np.intp]:
    """For each block of queries ``r`` different blocks that are neither in its window nor global.

    Parameters
    ----------
    n_blocks : int
        ``ceil(N / block)``.
    r : int
        May be 0.
    rng : numpy.random.Generator
    window_blocks, global_blocks
        As in :func:`forward`.

    Returns
    -------
    ndarray of integers ``(n_blocks, r)``
        Ascending in each row. A global block sees everything already; its row names itself.

    Raises
    ------
    TypeError, ValueError
        Naming the argument; ``r`` where some block has fewer than ``r`` others to draw from.
    """
    check_sizes(n_blocks=n_blocks)
    check_window_blocks(window_blocks)
    if isinstance(r, bool) or not isinstance(r, (int, np.integer)) or r < 0:
        raise ValueError(f"r: expected an integer of at least 0, got {r!r}")
    if not isinstance(rng, Generator):
        raise TypeError(f"rng: expected a numpy.random.Generator, got {type(rng).__name__}")
    whole = distinct_indices("global_blocks", global_blocks, n_blocks)
    drawn = np.repeat(np.arange(n_blocks)[:, None], r, axis=1)  # (n_blocks, r)
    for b in np.setdiff1d(np.arange(n_blocks), whole):
        others = np.arange(n_blocks)
        free = np.setdiff1d(others[abs(others - b) > window_blocks // 2], whole)
        if r > free.size:
            raise ValueError(f"r: expected at most {free.size}, the blocks that block {b} does not see yet, got {r}")
        drawn[b] = np.sort(rng.choice(free, r, replace=False))
    return drawn


@door(check_matrix)
def matrix(
    q: Array,
    k: Array,
    *,
    block: int,
    window_blocks: int = 3,
    global_blocks: ArrayLike = (0, -1),
    random_blocks: ArrayLike | None = None,
    key_mask: Mask | None = None,
    scale: float | None = None,
) -> Array:
    """The dense matrix ``P`` of (2), ``(..., N, N)``: ``out == matrix @ v``. Arguments as in :func:`forward`."""
    allowed = patterns.bigbird(
        q.shape[-2],
        block=block,
        window_blocks=window_blocks,
        global_blocks=global_blocks,
        random_blocks=random_blocks,
    )  # (N, N)
    return patterns.matrix(q, k, allowed, key_mask=key_mask, scale=scale)


pattern = patterns.bigbird  # which query sees which key, as a boolean matrix
