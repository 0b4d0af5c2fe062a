"""Rows whose scores are at the end of the range of their dtype: their log-sum-exp has no room for their sum.

A kernel keeps one number per row, ``lse = m + log s``. At the end of the range ``m + log s`` rounds to ``m``, and what
is made again of it are not the weights but a multiple of them:

    sum_j exp(a_ij - lse_i) = s_i exp(m_i - lse_i)           (1)

which is 1 in all other rows. A backward pass divides by it what it is given. Loops on a GPU add (1) up themselves.
"""

import numpy as np

__all__ = ["divided_by_sums", "is_saturated"]


def is_saturated(log_sum_exp):
    """Whether some row's maximum may be at the end of the range."""
    half = np.finfo(log_sum_exp.dtype).max / 2
    return bool(((abs(log_sum_exp) > half) & np.isfinite(log_sum_exp)).any())


def divided_by_sums(d_out, log_sum_exp, forward):
    """``d_out (..., N, M)`` by (1); ``forward()`` is the page's, which saves ``m`` and ``s`` apart."""
    if not is_saturated(log_sum_exp):
        return d_out
    _, saved = forward()
    m, s = saved.m[..., 0], saved.s[..., 0]
    sums = s * np.exp(m - np.where(np.isneginf(log_sum_exp), m, log_sum_exp))  # (1)
    return d_out / np.where(sums == 0, sums.dtype.type(1), sums)[..., None]
