"""Block-local attention (Parmar et al. 2018): softmax attention within blocks that know nothing of each other.

    S_i = {j : floor(j / block) = floor(i / block)}                            (1)  and j <= i, if causal
    o_i = sum_{j in S_i} P_ij v_j,   P_ij = exp(scale q_i . k_j - s_i)         (2)  s_i their log-sum-exp

``N / block`` small attentions beside one another. What is in another block is never seen, in however many layers; a
sliding window (`local`) costs as much and passes things on.

:Time: ``O(N block max(D, M))``
:Memory: ``O(N M)``
:Causal: yes
:Exact: over its pairs
:Gives: softmax attention within a block

The gradient, by hand
---------------------
That of softmax attention over pairs in general (`pattern_softmax`):

    dA_ij = P_ij (dO_i . v_j - dO_i . o_i)                                              (3)  j in S_i
    dQ_i = scale sum_j dA_ij k_j,  dK_j = scale sum_i dA_ij q_i,  dV_j = sum_i P_ij dO_i      (4)

Example
-------
Where all scores are equal, a row is the mean of its block; the last block is shorter.

>>> import numpy as np
>>> x, v = np.zeros((5, 2)), np.array([[1.0], [3.0], [8.0], [4.0], [7.0]])
>>> out, saved = forward(x, x, v, block=2)
>>> out.T
array([[2., 2., 6., 6., 7.]])
>>> backward(np.ones((5, 1)), saved).v.T
array([[1., 1., 1., 1., 1.]])

References
----------
Parmar et al. (2018), "Image transformer", section 3.3.
"""

from __future__ import annotations

import numpy as np

from linattn_ref.attention import pattern_softmax, patterns
from linattn_ref.attention.arguments import Array, Mask, check_sizes
from linattn_ref.attention.door import door
from linattn_ref.attention.pattern_checks import check_forward, check_matrix
from linattn_ref.attention.pattern_softmax import Gradients, Saved
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.attention.rooms import PatternSoftmaxRoom
from linattn_ref.kernels import parts, reference

__all__ = ["Gradients", "Saved", "backward", "forward", "matrix", "parts_of", "pattern"]


@door(check_forward)
def forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    block: int,
    causal: bool = False,
    key_mask: Mask | None = None,
    scale: float | None = None,
    pattern: parts.Pattern | None = None,
    out: Array | None = None,
    kernels: PatternSoftmaxRoom = reference,
) -> tuple[Array, Saved]:
    """Attention within blocks.

    Parameters
    ----------
    q, k, v, causal, key_mask, scale, pattern, out, kernels
        The common arguments: ``help(linattn_ref.attention)``. If not causal, query ``i`` is at position ``i``, whatever
        ``L`` is.
    block : int
        Positions a block; the last one may be shorter.
    """
    if pattern is None:
        pattern = parts_of(q.shape[-2], k.shape[-2], block=block, causal=causal)  # (1)
    return pattern_softmax.forward.unchecked(
        q, k, v, pattern, key_mask=key_mask, scale=scale, out=out, kernels=kernels
    )  # (2)


backward = pattern_softmax.backward  # (3), (4)


@plain_numbers
def parts_of(n: int, n_keys: int, *, block: int, causal: bool = False) -> parts.Pattern:
    """The keys of each query (1), as the kernels take them: an interval."""
    check_sizes(block=block)
    position, block = np.arange(n) + (n_keys - n if causal else 0), min(block, n + n_keys)  # no block is longer
    start = position // block * block
    return (parts.interval(start, position + 1 if causal else start + block, n_keys),)


@door(check_matrix)
def matrix(
    q: Array,
    k: Array,
    *,
    block: int,
    causal: bool = False,
    key_mask: Mask | None = None,
    scale: float | None = None,
) -> Array:
    """The dense matrix ``P`` of (2), ``(..., N, L)``: ``out == matrix @ v``. Arguments as in :func:`forward`."""
    n, n_keys = q.shape[-2], k.shape[-2]
    square = patterns.block_local(max(n, n_keys), block=block, causal=causal)
    allowed = patterns.rows_of(square, n, n_keys, causal=causal)  # (N, L)
    return patterns.matrix(q, k, allowed, key_mask=key_mask, scale=scale)


pattern = patterns.block_local  # which query sees which key, as a boolean matrix
