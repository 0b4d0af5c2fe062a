"""Softmax attention over an allowed set of pairs: what windows, blocks, BigBird and Sparse Transformers have in common.

Query ``i`` may look at the keys in ``S_i``, a few of the ``L``:

    A_ij = scale q_i . k_j                                   (1)  j in S_i
    s_i = log sum_{j in S_i} exp(A_ij)                       (2)
    P_ij = exp(A_ij - s_i)                                   (3)  0 where j is not in S_i
    o_i = sum_{j in S_i} P_ij v_j                            (4)

A mechanism only says what ``S_i`` is. It writes all of them down in a few numbers a query, a *pattern*
(`linattn_ref.kernels.parts`), and the kernel visits the pairs that are in it: time is proportional to their number, and
nothing has ``N L`` numbers. ``S_i`` is a set: a key that is in it for two reasons counts once.

The gradient, by hand
---------------------
That of softmax attention (`softmax`, equations (4)-(8)), with pairs left out. For a pair in the pattern the weights are
found again from (3), and ``sum_l P_il dP_il = dO_i . o_i``, since ``dP_ij = dO_i . v_j``:

    dV_j = sum_i P_ij dO_i                                   (5)  over the queries that have j in S_i
    dA_ij = P_ij (dO_i . v_j - dO_i . o_i)                   (6)
    dQ_i = scale sum_{j in S_i} dA_ij k_j                    (7)
    dK_j = scale sum_i dA_ij q_i                             (8)  as in (5)

(5) and (8) go the other way than (4): from a key to the queries that see it. The pattern sorted that way is found in
the first backward pass and kept with it.

Example
-------
Of three keys that score alike, query 0 sees the first two and query 1 the last one.

>>> import numpy as np
>>> from linattn_ref.kernels import parts
>>> pattern = (parts.interval(low=[0, 2], high=[2, 3], n_keys=3),)
>>> q, k, v = np.zeros((2, 4)), np.zeros((3, 4)), np.array([[1.0], [3.0], [5.0]])
>>> out, saved = forward(q, k, v, pattern)
>>> out
array([[2.],
       [5.]])
>>> backward(np.ones((2, 1)), saved).v
array([[0.5],
       [0.5],
       [1. ]])
"""

from __future__ import annotations

from typing import Any, NamedTuple

from linattn_ref.attention.arguments import Array, Mask, backward_check, resolve_scale
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.masks import zero_masked
from linattn_ref.attention.pattern_checks import check_with_pattern
from linattn_ref.attention.rooms import PatternSoftmaxRoom, kernel_of, name_of_room
from linattn_ref.kernels import parts, reference

__all__ = ["Gradients", "Saved", "backward", "forward"]


@documented
class Saved(NamedTuple):
    """What the backward pass needs: the inputs, the output, one number a row, and the pattern."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D), masked rows 0
    v: Array  # (..., L, M), masked rows 0
    out: Array  # (..., N, M)
    log_sum_exp: Array  # (..., N), s of (2); -inf where a query sees nothing
    key_mask: Mask | None  # (..., L)
    pattern: parts.Pattern  # who sees whom: the very one that was handed in, or built
    scale: float
    kernels: Any  # the room's name


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    q: Array  # (..., N, D)
    k: Array  # (..., L, D)
    v: Array  # (..., L, M)


@door(check_with_pattern)
def forward(
    q: Array,
    k: Array,
    v: Array,
    pattern: parts.Pattern,
    *,
    key_mask: Mask | None = None,
    scale: float | None = None,
    out: Array | None = None,
    kernels: PatternSoftmaxRoom = reference,
) -> tuple[Array, Saved]:
    """Softmax attention over the pairs of a pattern; arguments as in ``help(linattn_ref.attention)``."""
    scale = resolve_scale(scale, q.shape[-1])
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    buffer = {} if out is None else {"out": out}  # a room of one's own need not know of it
    out, log_sum_exp = kernels.pattern_softmax.forward(q, k, v, key_mask, pattern, scale, **buffer)  # (1)-(4)
    return out, Saved(q, k, v, out, log_sum_exp, key_mask, pattern, scale, name_of_room(kernels))


@door(backward_check(Saved))
def backward(d_out: Array, saved: Saved) -> Gradients:
    """Gradients of :func:`forward`: exactly 0 for masked keys and for queries that see nothing."""
    q, k, v, out, log_sum_exp, key_mask, pattern, scale, kernels = saved
    loop = kernel_of(kernels, "pattern_softmax")
    return Gradients(*loop.backward(d_out, q, k, v, out, log_sum_exp, key_mask, pattern, scale))  # (5)-(8)
