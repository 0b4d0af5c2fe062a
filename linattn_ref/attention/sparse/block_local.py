"""Block-local attention (Parmar et al. 2018): softmax attention within blocks that do not see each other.

    S_i = {j : floor(j / block) = floor(i / block)}                            (1)  and j <= i, if causal
    o_i = sum_{j in S_i} P_ij v_j,   P_ij = exp(scale q_i . k_j - lse_i)       (2)  lse_i their log-sum-exp

These are ``N / block`` small attentions next to one another. What is in another block is never seen, however many
layers there are. A sliding window (`local`) costs as much and passes things on.

:Time: ``O(N block max(D, M))``
:Memory: ``O(N M)``
:Causal: yes
:Exact: over its pairs
:Gives: softmax attention within a block

The gradient, by hand
---------------------
It is the gradient of softmax attention (`pattern_softmax`), with every sum over the pairs in the pattern:

    dA_ij = P_ij (dO_i . v_j - dO_i . o_i)                                              (3)  j in S_i
    dQ_i = scale sum_j dA_ij k_j,  dK_j = scale sum_i dA_ij q_i,  dV_j = sum_i P_ij dO_i      (4)

Example
-------
Where all scores are equal, a row is the mean of its block; the last block is shorter.

>>> x, v = np.zeros((5, 2)), np.array([[1.0], [3.0], [8.0], [4.0], [7.0]])
>>> out, saved = forward(x, x, v, block=2)
>>> out.T
array([[2., 2., 6., 6., 7.]])
>>> backward(np.ones((5, 1)), saved).v.T
array([[1., 1., 1., 1., 1.]])

References
----------
Parmar et al. (2018), "Image transformer", section 3.3 (there a block also sees some positions before it).
Child et al. (2019), "Generating long sequences with sparse Transformers", section 4.3 (blocks alone).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from linattn_ref.attention.parts.recurrent import matrix_of
from linattn_ref.attention.sparse import pattern_softmax, patterns
from linattn_ref.attention.sparse.part import KEPT, Pattern, interval
from linattn_ref.attention.sparse.pattern_softmax import Gradients, Saved
from linattn_ref.op import Array, Bool, Float, op
from linattn_ref.op.options import sized

__all__ = ["Gradients", "Saved", "backward", "forward", "matrix", "parts_of", "pattern"]


@op(look=sized("block"))
def forward(
    q: Float[Array, "... N D"],
    k: Float[Array, "... L D"],
    v: Float[Array, "... L M"],
    *,
    block: int,
    causal: bool = False,
    key_mask: Bool[Array, "... L"] | None = None,
    scale: float | None = None,
) -> tuple[Array, Saved]:
    """Equations (1) and (2).

    ``block`` is the number of positions per block; the last one may be shorter. If not causal, query ``i`` is at
    position ``i``, whatever ``L`` is.
    """
    seen = parts_of(q.shape[-2], k.shape[-2], block=block, causal=causal)  # (1)
    return pattern_softmax.forward(q, k, v, seen, key_mask=key_mask, scale=scale)  # (2)


backward = pattern_softmax.backward  # (3), (4)


@op(look=sized("block"))
@lru_cache(KEPT)
def parts_of(n: int, n_keys: int, *, block: int, causal: bool = False) -> Pattern:
    """The sets (1): an interval for each query."""
    position, block = np.arange(n) + (n_keys - n if causal else 0), min(block, n + n_keys)  # no block is longer
    start = position // block * block
    return (interval(start, position + 1 if causal else start + block, n_keys),)  # (1)


matrix, pattern = matrix_of(forward), patterns.block_local
