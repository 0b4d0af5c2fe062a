"""Local attention (Parmar et al. 2018, Beltagy et al. 2020): softmax attention over the keys in a sliding window.

    S_i = {j : |i - j| <= window * dilation, (i - j) mod dilation = 0}         (1)  and j <= i, if causal
    o_i = sum_{j in S_i} P_ij v_j,   P_ij = exp(scale q_i . k_j - s_i)         (2)  s_i their log-sum-exp

Every row has as many pairs, whatever the length is, and time grows as ``N`` does. What is far away has to travel: ``t``
layers move it ``t window dilation`` places. The other way to stay near, blocks, is in `block_local`.

:Time: ``O(N window max(D, M))``
:Memory: ``O(N M)``
:Causal: yes
:Exact: over its pairs
:Gives: softmax attention within a window

The gradient, by hand
---------------------
That of softmax attention over pairs in general (`pattern_softmax`),

    dA_ij = P_ij (dO_i . v_j - dO_i . o_i)                                              (3)  j in S_i
    dQ_i = scale sum_j dA_ij k_j,  dK_j = scale sum_i dA_ij q_i,  dV_j = sum_i P_ij dO_i      (4)

and linear in ``N`` too, for the sums run over the same pairs. For ``dK_j`` they go the other way: over the queries that
have ``j`` in their window, which is the same window turned round.

A dilated window is a plain one
-------------------------------
Query ``i`` sees only keys of its own residue, ``j mod dilation = i mod dilation``. Sorted by residue, and by position
within a residue, its keys are ``2 window + 1`` neighbours; so the kernel knows intervals only.

Example
-------
Where all scores are equal, a row is the mean of its window.

>>> import numpy as np
>>> x, v = np.zeros((4, 2)), np.array([[1.0], [3.0], [8.0], [4.0]])
>>> out, saved = forward(x, x, v, window=1)
>>> out.T
array([[2., 4., 5., 6.]])
>>> backward(np.ones((4, 1)), saved).v.T.round(2)
array([[0.83, 1.17, 1.17, 0.83]])

References
----------
Parmar et al. (2018), "Image transformer", section 3.3.
Beltagy et al. (2020), "Longformer: the long-document Transformer", section 3.1 (windows, dilated windows).
"""

from __future__ import annotations

from linattn_ref.attention import block_local as blocks
from linattn_ref.attention import pattern_softmax, patterns
from linattn_ref.attention.arguments import Array, Mask, check_sizes
from linattn_ref.attention.door import door
from linattn_ref.attention.pattern_checks import check_forward, check_matrix
from linattn_ref.attention.pattern_softmax import Gradients, Saved
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.attention.rooms import PatternSoftmaxRoom
from linattn_ref.kernels import parts, reference

__all__ = [
    "Gradients",
    "Saved",
    "backward",
    "block_local",
    "block_local_backward",
    "block_local_matrix",
    "block_local_parts_of",
    "block_local_pattern",
    "forward",
    "matrix",
    "parts_of",
    "pattern",
]


@door(check_forward)
def forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    window: int,
    dilation: int = 1,
    causal: bool = False,
    key_mask: Mask | None = None,
    scale: float | None = None,
    pattern: parts.Pattern | None = None,
    out: Array | None = None,
    kernels: PatternSoftmaxRoom = reference,
) -> tuple[Array, Saved]:
    """Attention in a sliding window.

    Parameters
    ----------
    q, k, v, causal, key_mask, scale, pattern, out, kernels
        The common arguments: ``help(linattn_ref.attention)``. If not causal, query ``i`` is at position ``i``, whatever
        ``L`` is.
    window : int
        Keys on each side of a query's own place; only those before it, if causal.
    dilation : int
        The step from one key of the window to the next.
    """
    if pattern is None:
        pattern = parts_of(q.shape[-2], k.shape[-2], window=window, dilation=dilation, causal=causal)  # (1)
    return pattern_softmax.forward.unchecked(
        q, k, v, pattern, key_mask=key_mask, scale=scale, out=out, kernels=kernels
    )  # (2)


backward = pattern_softmax.backward  # (3), (4)


@plain_numbers
def parts_of(n: int, n_keys: int, *, window: int, dilation: int = 1, causal: bool = False) -> parts.Pattern:
    """The keys of each query (1), as the kernels take them: a single band."""
    check_sizes(window=window, dilation=dilation)
    shift = n_keys - n if causal else 0
    return (parts.band(n, n_keys, -window, 0 if causal else window, dilation=dilation, shift=shift),)


@door(check_matrix)
def matrix(
    q: Array,
    k: Array,
    *,
    window: int,
    dilation: int = 1,
    causal: bool = False,
    key_mask: Mask | None = None,
    scale: float | None = None,
) -> Array:
    """The dense matrix ``P`` of (2), ``(..., N, L)``: ``out == matrix @ v``. Arguments as in :func:`forward`."""
    n, n_keys = q.shape[-2], k.shape[-2]
    square = patterns.local(max(n, n_keys), window=window, dilation=dilation, causal=causal)
    allowed = patterns.rows_of(square, n, n_keys, causal=causal)  # (N, L)
    return patterns.matrix(q, k, allowed, key_mask=key_mask, scale=scale)


pattern = patterns.local  # which query sees which key, as a boolean matrix

block_local, block_local_backward, block_local_matrix = blocks.forward, blocks.backward, blocks.matrix
block_local_parts_of, block_local_pattern = blocks.parts_of, blocks.pattern
