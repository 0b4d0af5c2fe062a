"""Scores beyond the range of their dtype, which products of finite numbers can be.

    a_ij = min(max(scale q_i . k_j, -LARGEST), LARGEST)      (1)  LARGEST the largest finite number

for queries and keys that are finite; what is not shows. So the maximum of a row is finite, its weights sum to 1
whatever the size of its scores, and scores that are as large as can be share the weight. NaN stays NaN; -inf is for
pairs that do not see one another alone, and comes after (1).

A row's log-sum-exp has no room then for the logarithm of the number of keys that share: LARGEST + log 2 rounds to
LARGEST. ``exp(a_ij - log_sum_exp_i)`` are not the weights but a multiple of them, by which backward passes divide.
"""

import numpy as np

__all__ = ["is_saturated", "saturate", "without_zero"]


def saturate(scores, q, k):
    """Equation (1) for the ``scores (..., N, L)`` of ``q (..., N, D)`` and ``k (..., L, D)``, in place."""
    if isinstance(scores, np.ndarray) and not np.isinf(scores).any():  # a GPU is not asked
        return scores
    largest = np.finfo(scores.dtype).max
    finite = np.isfinite(q).all(axis=-1)[..., None] & np.isfinite(k).all(axis=-1)[..., None, :]
    np.copyto(scores, np.clip(scores, -largest, largest), where=finite)
    return scores


def is_saturated(log_sum_exp):
    """Whether some row's maximum may be at the end of the range."""
    half = np.finfo(log_sum_exp.dtype).max / 2
    return bool(((abs(log_sum_exp) > half) & np.isfinite(log_sum_exp)).any())


def without_zero(sums):
    """The sums of rows' multiples of weights ``(..., N)``, to divide by: 1 for a row that sees nothing."""
    return np.where(sums == 0, sums.dtype.type(1), sums)[..., None]
