"""The page `online_softmax` with the arguments and results of a backend's loop, which is held against it."""

import numpy as np

from linattn_ref.attention import online_softmax
from linattn_ref.attention.parts.masks import visible

__all__ = ["backward", "forward"]


def forward(q, k, v, key_mask, causal, scale):
    out, saved = online_softmax.forward(q, k, v, causal=causal, key_mask=key_mask, scale=scale)
    seen = np.broadcast_to(visible(q, k, causal, key_mask), (*q.shape[:-1], k.shape[-2])).any(axis=-1)
    return out, np.where(seen, saved.lse[..., 0], q.dtype.type(-np.inf))


def backward(d_out, q, k, v, out, log_sum_exp, key_mask, causal, scale):
    saved = online_softmax.forward(q, k, v, causal=causal, key_mask=key_mask, scale=scale)[1]
    return online_softmax.backward(d_out, saved)
