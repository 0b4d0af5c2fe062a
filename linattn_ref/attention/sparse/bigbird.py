"""BigBird (Zaheer et al. 2020): in blocks, a sliding window, global blocks and a few random blocks.

Tokens are cut into blocks of ``b``; block ``a`` of queries sees the key blocks

    S_a = {all blocks}                                                         if a is global
    S_a = {c : |c - a| <= (window_blocks - 1) / 2} u {global} u random_a       otherwise      (1)

and a query ``i`` in it sees ``T_i``, every token of those:

    P_ij = exp(scale q_i . k_j) / sum_{l in T_i} exp(scale q_i . k_l)                   (2)
    O = P V                                                                             (3)

``S_a`` is a set: a block that is in it for two reasons counts once. With ``w`` blocks in the window, ``g`` global ones
and ``r`` random ones there are about ``N b (w + g + r) + N b g`` pairs. One global block is enough for every pair of
tokens to be at most two steps apart (``linattn_ref.theory.pattern_graphs``); the random blocks shorten the paths that
do not lead through it.

:Time: ``O(N b (w + g + r) max(D, M))``
:Memory: ``O(N M)``
:Causal: no
:Exact: over its pairs
:Gives: softmax attention over a window, global and random blocks

The gradient, by hand
---------------------
It is the gradient of softmax attention (`pattern_softmax`), with every sum over the pairs in the pattern and with the
row's log-sum-exp ``lse_i``:

    P_ij = exp(scale q_i . k_j - lse_i),   dA_ij = P_ij (dO_i . v_j - dO_i . o_i)       (4)
    dQ_i = scale sum_j dA_ij k_j,  dK_j = scale sum_i dA_ij q_i,  dV_j = sum_i P_ij dO_i      (5)

The random blocks are arguments, drawn beforehand by :func:`draw_random_blocks`; nothing is drawn in ``forward``.

Example
-------
Eight tokens in blocks of two, one block in the window and one global; all scores are equal. The block (4, 5) sees the
tokens 0, 1, 4 and 5, and one random block more, here (6, 7).

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

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike

from linattn_ref.attention.parts.recurrent import matrix_of
from linattn_ref.attention.sparse import pattern_softmax, patterns
from linattn_ref.attention.sparse.indices import distinct_indices, random_rows
from linattn_ref.attention.sparse.part import KEPT, Indices, Pattern, blocks
from linattn_ref.attention.sparse.pattern_softmax import Gradients, Saved
from linattn_ref.attention.sparse.patterns import check_window_blocks
from linattn_ref.attention.sparse.patterns import look_bigbird as look
from linattn_ref.op import Array, Bool, Float, op
from linattn_ref.op.options import check_sizes

__all__ = ["Gradients", "Saved", "backward", "draw_random_blocks", "forward", "matrix", "parts_of", "pattern"]


@op(look=look)
def forward(
    q: Float[Array, "... N D"],
    k: Float[Array, "... N D"],
    v: Float[Array, "... N M"],
    *,
    block: int,
    window_blocks: int = 3,
    global_blocks: ArrayLike = (0, -1),
    random_blocks: ArrayLike | None = None,
    key_mask: Bool[Array, "... N"] | None = None,
    scale: float | None = None,
) -> tuple[Array, Saved]:
    """Equations (1)-(3).

    Parameters
    ----------
    block : int
        Tokens per block; the last one may be shorter.
    window_blocks : int
        Blocks in the window, the query's own in the middle: an odd number.
    global_blocks : sequence of int
        Blocks that see all and are seen by all. Negative ones are counted from the end, one given twice is one, and
        there may be none.
    random_blocks : ndarray of integers ``(blocks, r)``, optional
        The blocks that each block of queries sees as well, the same for all leading axes: see
        :func:`draw_random_blocks`. Rows of global blocks are ignored.
    """
    options = {"window_blocks": window_blocks, "global_blocks": global_blocks, "random_blocks": random_blocks}
    seen = parts_of(q.shape[-2], block=block, **options)  # (1)
    return pattern_softmax.forward(q, k, v, seen, key_mask=key_mask, scale=scale)  # (2), (3)


backward = pattern_softmax.backward  # (4), (5)


@op(look=look)
def parts_of(
    n: int,
    *,
    block: int,
    window_blocks: int = 3,
    global_blocks: ArrayLike = (0, -1),
    random_blocks: ArrayLike | None = None,
) -> Pattern:
    """The sets ``S_a`` of equation (1) as one list of key blocks for each block of queries."""
    whole = distinct_indices("global_blocks", global_blocks, -(-n // block))
    drawn = random_rows(random_blocks, -(-n // block), whole)
    return _parts(n, block, window_blocks // 2, tuple(whole.tolist()), tuple(map(tuple, drawn.tolist())))


@lru_cache(KEPT)
def _parts(n: int, block: int, half: int, whole: tuple[int, ...], drawn: tuple[tuple[int, ...], ...]) -> Pattern:
    every = range(len(drawn))
    seen = [
        every if b in whole else sorted({*every[max(0, b - half) : b + half + 1], *whole, *drawn[b]})  # (1)
        for b in every
    ]
    return (blocks(n, n, block, seen),)


def look_drawing(n_blocks: Any, r: Any, window_blocks: Any, **_: Any) -> None:
    check_sizes(n_blocks=n_blocks)
    check_window_blocks(window_blocks)
    check_sizes(0, r=r)


@op(look=look_drawing)
def draw_random_blocks(
    n_blocks: int, r: int, rng: Generator, window_blocks: int = 3, global_blocks: ArrayLike = (0, -1)
) -> Indices:
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
    whole = distinct_indices("global_blocks", global_blocks, n_blocks)
    drawn = np.repeat(np.arange(n_blocks)[:, None], r, axis=1)  # (n_blocks, r)
    for b in np.setdiff1d(np.arange(n_blocks), whole):
        others = np.arange(n_blocks)
        free = np.setdiff1d(others[abs(others - b) > window_blocks // 2], whole)
        if r > free.size:
            raise ValueError(f"r: expected at most {free.size}, the blocks that block {b} does not see yet, got {r}")
        drawn[b] = np.sort(rng.choice(free, r, replace=False))
    return drawn


matrix, pattern = matrix_of(forward), patterns.bigbird
