"""Local attention (Parmar et al. 2018, Beltagy et al. 2020): softmax attention over the keys in a sliding window.

    S_i = {j : |i - j| <= window * dilation, (i - j) mod dilation = 0}         (1)  and j <= i, if causal
    o_i = sum_{j in S_i} P_ij v_j,   P_ij = exp(scale q_i . k_j - lse_i)       (2)  lse_i their log-sum-exp

Away from the ends, every row has the same number of pairs, whatever the length is, and time grows as ``N`` does. What
is far away has to travel: ``t`` layers move it ``t window dilation`` places. The other way to stay near, blocks, is in
`block_local`.

:Time: ``O(N window max(D, M))``
:Memory: ``O(N M)``
:Causal: yes
:Exact: over its pairs
:Gives: softmax attention within a window

The gradient, by hand
---------------------
It is the gradient of softmax attention (`pattern_softmax`), with every sum over the pairs in the pattern:

    dA_ij = P_ij (dO_i . v_j - dO_i . o_i)                                              (3)  j in S_i
    dQ_i = scale sum_j dA_ij k_j,  dK_j = scale sum_i dA_ij q_i,  dV_j = sum_i P_ij dO_i      (4)

Its cost is linear in ``N`` too, for the sums run over the same pairs. For ``dK_j`` they go the other way: over the
queries that have ``j`` in their window, which is the same window turned round.

A dilated window is a plain one
-------------------------------
Query ``i`` sees only keys of its own residue, ``j mod dilation = i mod dilation``. Sorted by residue, and by position
within a residue, its keys are ``2 window + 1`` neighbours; so a part of a pattern (`part`) needs only intervals.

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
Parmar et al. (2018), "Image transformer", section 3.3 (there a block of queries shares one window).
Beltagy et al. (2020), "Longformer: the long-document Transformer", section 3.1 (windows, dilated windows).
"""

from __future__ import annotations

from functools import lru_cache

from linattn_ref.attention.parts.recurrent import matrix_of
from linattn_ref.attention.sparse import pattern_softmax, patterns
from linattn_ref.attention.sparse.part import KEPT, Pattern, band
from linattn_ref.attention.sparse.pattern_softmax import Gradients, Saved
from linattn_ref.attention.sparse.patterns import look_local as look
from linattn_ref.op import Array, Bool, Float, op

__all__ = ["Gradients", "Saved", "backward", "forward", "matrix", "parts_of", "pattern"]


@op(look=look)
def forward(
    q: Float[Array, "... N D"],
    k: Float[Array, "... L D"],
    v: Float[Array, "... L M"],
    *,
    window: int,
    dilation: int = 1,
    causal: bool = False,
    key_mask: Bool[Array, "... L"] | None = None,
    scale: float | None = None,
) -> tuple[Array, Saved]:
    """Equations (1) and (2).

    ``window`` is the number of keys on each side of a query's own place, or only before it if causal, and ``dilation``
    the step from one to the next. If not causal, query ``i`` is at position ``i``, whatever ``L`` is.
    """
    seen = parts_of(q.shape[-2], k.shape[-2], window=window, dilation=dilation, causal=causal)  # (1)
    return pattern_softmax.forward(q, k, v, seen, key_mask=key_mask, scale=scale)  # (2)


backward = pattern_softmax.backward  # (3), (4)


@op(look=look)
@lru_cache(KEPT)
def parts_of(n: int, n_keys: int, *, window: int, dilation: int = 1, causal: bool = False) -> Pattern:
    """The sets (1): a single band."""
    shift = n_keys - n if causal else 0
    return (band(n, n_keys, -window, 0 if causal else window, dilation=dilation, shift=shift),)  # (1)


matrix, pattern = matrix_of(forward), patterns.local
