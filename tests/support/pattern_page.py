"""The page `pattern_softmax` with the arguments and results of a backend's loop, which is held against it."""

import numpy as np

from linattn_ref.attention import pattern_softmax

__all__ = ["backward", "forward"]


def forward(q, k, v, key_mask, pattern, scale):
    out, saved = pattern_softmax.forward.page(q, k, v, pattern, key_mask=key_mask, scale=scale)
    return out, np.where(saved.s == 0, q.dtype.type(-np.inf), saved.lse)[..., 0]


def backward(d_out, q, k, v, out, log_sum_exp, key_mask, pattern, scale):
    _, saved = pattern_softmax.forward.page(q, k, v, pattern, key_mask=key_mask, scale=scale)
    return pattern_softmax.backward.page(d_out, saved)
