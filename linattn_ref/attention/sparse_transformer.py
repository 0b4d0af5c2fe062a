"""Sparse Transformer (Child et al. 2019): causal attention in two patterns that reach every token in two steps.

A query at position ``p`` sees, of the keys ``j <= p``, with ``l = stride`` and ``c = summary``,

    strided    j > p - l   or   (p - j) mod l = 0                        (1)
    fixed      floor(j / l) = floor(p / l)   or   j mod l >= l - c       (2)

and attends to them with one softmax:

    P_pj = exp(scale q_p . k_j) / sum_{allowed l} exp(scale q_p . k_l),   O = P V       (3)

The paper uses both conditions at once ("merged"), or one in one head or layer and the other in the next: ``local_only``
and ``strided_only`` are the two of (1), ``fixed_summary`` is the second of (2), and the first is
`block_local` with ``causal=True``. A query that has no summary before it sees nothing, and its output is 0.

A row has about ``l + N / l`` pairs, which at ``l = sqrt(N)`` makes ``O(N sqrt(N))`` altogether, not ``O(N log N)``
(``linattn_ref.theory.pattern_graphs``). The strided pattern suits what has rows, as pictures do; the fixed one text.

:Time: ``O(N (l + N / l) max(D, M))``
:Memory: ``O(N M)``
:Causal: always
:Exact: over its pairs
:Gives: softmax attention over a causal pattern of two parts

The gradient, by hand
---------------------
That of softmax attention, over the pairs that there are, with the row's log-sum-exp ``s_p``:

    P_pj = exp(scale q_p . k_j - s_p),   dA_pj = P_pj (dO_p . v_j - dO_p . o_p)         (4)
    dQ_p = scale sum_j dA_pj k_j,  dK_j = scale sum_p dA_pj q_p,  dV_j = sum_p P_pj dO_p      (5)

Example
-------
Blocks of three whose last place is their summary; all scores are equal. Token 4 sees its own block up to itself, 3 and
4, and the summary of the block before, 2.

>>> import numpy as np
>>> x, v = np.zeros((6, 2)), np.arange(6.0)[:, None]
>>> out, saved = forward(x, x, v, kind="fixed", stride=3)
>>> out.T
array([[0. , 0.5, 1. , 2.5, 3. , 3.5]])
>>> backward(np.ones((6, 1)), saved).v.T.round(2)  # the summary is seen most
array([[1.83, 0.83, 1.42, 1.08, 0.58, 0.25]])

References
----------
Child et al. (2019), "Generating long sequences with sparse Transformers", sections 4.2 and 4.3, Figure 3. (The paper's
first head of the strided pattern has one key more, ``j = p - l``, which is in the second head too.)
"""

from __future__ import annotations

from functools import partial

import numpy as np

from linattn_ref.attention import pattern_softmax, patterns
from linattn_ref.attention.arguments import Array, Mask
from linattn_ref.attention.door import door
from linattn_ref.attention.pattern_checks import KINDS, Kind, check_forward, check_kind, check_matrix
from linattn_ref.attention.pattern_softmax import Gradients, Saved
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.attention.rooms import PatternSoftmaxRoom
from linattn_ref.kernels import parts, reference

__all__ = ["KINDS", "Gradients", "Kind", "Saved", "backward", "forward", "matrix", "parts_of", "pattern"]


@door(partial(check_forward, causal=True))
def forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    kind: Kind,
    stride: int,
    summary: int = 1,
    key_mask: Mask | None = None,
    scale: float | None = None,
    pattern: parts.Pattern | None = None,
    out: Array | None = None,
    kernels: PatternSoftmaxRoom = reference,
) -> tuple[Array, Saved]:
    """Attention of a Sparse Transformer, always causal.

    Parameters
    ----------
    q, k, v, key_mask, scale, pattern, out, kernels
        The common arguments: ``help(linattn_ref.attention)``. ``N <= L``; query ``i`` is at position ``i + (L - N)``.
    kind : {"strided", "fixed", "local_only", "strided_only", "fixed_summary"}
    stride : int
        ``l``, best about ``sqrt(L)``.
    summary : int
        ``c``, the last places of each block that later blocks see; at most ``stride``. Of no effect but in the fixed
        patterns.
    """
    if pattern is None:
        pattern = parts_of(q.shape[-2], k.shape[-2], kind=kind, stride=stride, summary=summary)  # (1), (2)
    return pattern_softmax.forward.unchecked(
        q, k, v, pattern, key_mask=key_mask, scale=scale, out=out, kernels=kernels
    )  # (3)


backward = pattern_softmax.backward  # (4), (5)


@plain_numbers
def parts_of(n: int, n_keys: int, *, kind: Kind, stride: int, summary: int = 1) -> parts.Pattern:
    """What each query sees, as disjoint parts: of (1) the window and the column before it, of (2) the own block up to
    the query and the summaries of the blocks before.
    """
    check_kind(kind, stride, summary)
    shift = n_keys - n
    if kind == "local_only":
        return (parts.band(n, n_keys, 1 - stride, 0, shift=shift),)
    if kind == "strided_only":
        return (parts.band(n, n_keys, -n_keys, 0, dilation=stride, shift=shift),)
    if kind == "strided":
        window = parts.band(n, n_keys, 1 - stride, 0, shift=shift)
        return window, parts.band(n, n_keys, -n_keys, -1, dilation=stride, shift=shift)  # (1)
    position, first = np.arange(n) + shift, np.zeros(n, np.intp)
    summaries = np.flatnonzero(np.arange(n_keys) % stride >= stride - summary)
    if kind == "fixed_summary":
        return (parts.interval(first, np.searchsorted(summaries, position, side="right"), n_keys, summaries),)
    start = position // stride * stride  # of the query's block
    own_block = parts.interval(start, position + 1, n_keys)
    return own_block, parts.interval(first, np.searchsorted(summaries, start), n_keys, summaries)  # (2)


@door(partial(check_matrix, causal=True))
def matrix(
    q: Array,
    k: Array,
    *,
    kind: Kind,
    stride: int,
    summary: int = 1,
    key_mask: Mask | None = None,
    scale: float | None = None,
) -> Array:
    """The dense matrix ``P`` of (3), ``(..., N, L)``: ``out == matrix @ v``. Arguments as in :func:`forward`."""
    n, n_keys = q.shape[-2], k.shape[-2]
    square = patterns.sparse_transformer(n_keys, kind=kind, stride=stride, summary=summary)
    return patterns.matrix(q, k, patterns.rows_of(square, n, n_keys, causal=True), key_mask=key_mask, scale=scale)


pattern = patterns.sparse_transformer  # which query sees which key, as a boolean matrix
