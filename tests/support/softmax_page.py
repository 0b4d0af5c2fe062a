"""The page `online_softmax` with the arguments and results of a backend's loop, which is held against it."""

import numpy as np

from linattn_ref.attention import online_softmax

__all__ = ["backward", "forward", "log_sum_exp", "reciprocal", "step"]


def forward(q, k, v, key_mask, causal, scale):
    out, saved = online_softmax.forward(q, k, v, causal=causal, key_mask=key_mask, scale=scale)
    return out, saved.m[..., 0], reciprocal(saved.s[..., 0])


def backward(d_out, q, k, v, out, m, share, key_mask, causal, scale):
    saved = online_softmax.forward(q, k, v, causal=causal, key_mask=key_mask, scale=scale)[1]
    return online_softmax.backward(d_out, saved)


def step(q, k, v, length, scale):
    seen = np.s_[..., :length, :]
    return online_softmax.forward(q[..., None, :], k[seen], v[seen], scale=scale)[0][..., 0, :]


def reciprocal(s):
    """``1 / s``, and 0 for a query that sees nothing."""
    return np.divide(1, s, out=np.zeros_like(s), where=s != 0)


def log_sum_exp(m, share):
    """(4) of the page; -inf for a query that sees nothing."""
    return m - np.log(share, out=np.full_like(share, np.inf), where=share != 0)
