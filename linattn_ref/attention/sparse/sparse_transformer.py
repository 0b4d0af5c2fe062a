"""Sparse Transformer (Child et al. 2019): causal attention in two patterns that reach every token in two steps.

A query at position ``p`` sees, of the keys ``j <= p``, with ``l = stride`` and ``c = summary``,

    strided    j > p - l   or   (p - j) mod l = 0                        (1)
    fixed      floor(j / l) = floor(p / l)   or   j mod l >= l - c       (2)

and attends to them with one softmax:

    P_pj = exp(scale q_p . k_j) / sum_{allowed t} exp(scale q_p . k_t),   O = P V       (3)

The paper uses both conditions at once ("merged"), or one in one head or layer and the other in the next: ``local_only``
and ``strided_only`` are the two of (1), ``fixed_summary`` is the second of (2), and the first is
`block_local` with ``causal=True``. With ``fixed_summary`` alone, a query that has no summary up to its place
sees nothing, and its output is 0.

A row has about ``l + N / l`` pairs, or ``l + c N / l`` with summaries. At ``l = sqrt(N)``, with few summaries, it makes
``O(N sqrt(N))`` altogether, not ``O(N log N)`` (``linattn_ref.theory.pattern_graphs``). The strided pattern suits what
has rows, as pictures do. The fixed one suits text.

:Time: ``O(N (l + c N / l) max(D, M))``
:Memory: ``O(N M)``
:Causal: always
:Exact: over its pairs
:Gives: softmax attention over a causal pattern of two parts

The gradient, by hand
---------------------
It is the gradient of softmax attention (`pattern_softmax`), with every sum over the pairs in the pattern and with the
row's log-sum-exp ``lse_p``:

    P_pj = exp(scale q_p . k_j - lse_p),  dA_pj = P_pj (dO_p . v_j - dO_p . o_p)        (4)
    dQ_p = scale sum_j dA_pj k_j,  dK_j = scale sum_p dA_pj q_p,  dV_j = sum_p P_pj dO_p      (5)

Example
-------
Blocks of three whose last place is their summary; all scores are equal. Token 4 sees its own block up to itself, 3 and
4, and the summary of the block before, 2.

>>> x, v = np.zeros((6, 2)), np.arange(6.0)[:, None]
>>> out, saved = forward(x, x, v, kind="fixed", stride=3)
>>> out.T
array([[0. , 0.5, 1. , 2.5, 3. , 3.5]])
>>> backward(np.ones((6, 1)), saved).v.T.round(2)  # the summary is seen most
array([[1.83, 0.83, 1.42, 1.08, 0.58, 0.25]])

References
----------
Child et al. (2019), "Generating long sequences with sparse Transformers", sections 4.2, 4.3 and 5.1, Figure 3. (The
paper's first head of the strided pattern has one key more, ``j = p - l``, which is in the second head too.)
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from linattn_ref.attention.parts.recurrent import matrix_of
from linattn_ref.attention.sparse import pattern_softmax, patterns
from linattn_ref.attention.sparse.part import KEPT, Pattern, band, interval
from linattn_ref.attention.sparse.pattern_softmax import Gradients, Saved
from linattn_ref.attention.sparse.patterns import KINDS, Kind, check_kind
from linattn_ref.op import Array, Bool, Float, op
from linattn_ref.op.options import check_options

__all__ = ["KINDS", "Gradients", "Kind", "Saved", "backward", "forward", "matrix", "parts_of", "pattern"]

ALWAYS_CAUSAL = True  # without an option for it: `nn.mechanism` asks


def look(**options: Any) -> None:
    check_kind(**options)
    check_options({**options, "causal": True})


@op(look=look)
def forward(
    q: Float[Array, "... N D"],
    k: Float[Array, "... L D"],
    v: Float[Array, "... L M"],
    *,
    kind: Kind,
    stride: int,
    summary: int = 1,
    key_mask: Bool[Array, "... L"] | None = None,
    scale: float | None = None,
) -> tuple[Array, Saved]:
    """Equations (1)-(3), always causal: query ``i`` is at position ``i + (L - N)``.

    ``kind`` is one of "strided", "fixed", "local_only", "strided_only" and "fixed_summary"; ``stride`` is ``l``, best
    about ``sqrt(L)``; ``summary`` is ``c``, the last places of each block that later blocks see, in the fixed patterns.
    """
    seen = parts_of(q.shape[-2], k.shape[-2], kind=kind, stride=stride, summary=summary)  # (1), (2)
    return pattern_softmax.forward(q, k, v, seen, key_mask=key_mask, scale=scale)  # (3)


backward = pattern_softmax.backward  # (4), (5)


@op(look=look)
@lru_cache(KEPT)
def parts_of(n: int, n_keys: int, *, kind: Kind, stride: int, summary: int = 1) -> Pattern:
    """What each query sees, as disjoint parts.

    Of (1) these are the window and the column before it, of (2) the own block up to the query and the summaries of the
    blocks before.
    """
    shift = n_keys - n
    if kind == "local_only":
        return (band(n, n_keys, 1 - stride, 0, shift=shift),)
    if kind == "strided_only":
        return (band(n, n_keys, -n_keys, 0, dilation=stride, shift=shift),)
    if kind == "strided":
        window = band(n, n_keys, 1 - stride, 0, shift=shift)
        return window, band(n, n_keys, -n_keys, -1, dilation=stride, shift=shift)  # (1)
    position, first = np.arange(n) + shift, np.zeros(n, np.intp)
    summaries = np.flatnonzero(np.arange(n_keys) % stride >= stride - summary)
    if kind == "fixed_summary":
        return (interval(first, np.searchsorted(summaries, position, side="right"), n_keys, summaries),)
    start = position // stride * stride  # of the query's block
    own_block = interval(start, position + 1, n_keys)
    return own_block, interval(first, np.searchsorted(summaries, start), n_keys, summaries)  # (2)


matrix, pattern = matrix_of(forward), patterns.sparse_transformer
