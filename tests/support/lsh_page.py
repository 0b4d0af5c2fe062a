"""LSH attention with the arguments and results of a backend's loop: one softmax over all who meet, in ``(N, N)``."""

import numpy as np
from softmax_page import reciprocal

from linattn_ref.attention.lsh_hashing import chunk_of_token
from linattn_ref.attention.parts.masks import mix, scores
from linattn_ref.attention.softmax import softmax

__all__ = ["backward", "forward"]


def forward(q, k, v, order, seen, chunk, causal, scale):
    a = scores_of_met(q, k, order, seen, chunk, causal, scale)
    m = np.maximum(a.max(axis=-1), np.finfo(a.dtype).min)
    s = np.exp(a - m[..., None]).sum(axis=-1)
    return mix(softmax(a), v), m, reciprocal(s)


def backward(d_out, q, k, v, out, m, share, order, seen, chunk, causal, scale):
    p = softmax(scores_of_met(q, k, order, seen, chunk, causal, scale))
    d_a = p * (d_out @ v.mT - (d_out * out).sum(axis=-1, keepdims=True))
    return scale * d_a @ k, scale * d_a.mT @ q, p.mT @ d_out


def scores_of_met(q, k, order, seen, chunk, causal, scale):
    """``(..., N, N)``, -inf for pairs that meet in no round, where the first ``seen`` of each order take part."""
    chunks, rank = chunk_of_token(order, chunk), order.argsort(axis=-1)  # (..., rounds, N)
    there = rank < np.asarray(seen)[..., None, None]
    met = np.isin(chunks[..., :, None] - chunks[..., None, :], (0, 1)) & there[..., :, None] & there[..., None, :]
    n = order.shape[-1]
    others = np.tri(n, k=-1, dtype=bool) if causal else ~np.eye(n, dtype=bool)
    return np.where(met.any(axis=-3) & others, scores(q, k, scale), q.dtype.type(-np.inf))
