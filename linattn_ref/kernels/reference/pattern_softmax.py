"""Softmax attention over an allowed set of (query, key) pairs, in NumPy: cost proportional to the pairs.

The set is a tuple of disjoint parts (`linattn_ref.kernels.parts`), and each part is read in tiles: some queries, and
the keys that any of them sees. What a query has seen so far is summed up in two things, its output ``o`` and the
log-sum-exp ``s`` of its scores, and goes into the next softmax *as one more key, with score s and value o*. With the
tile's scores ``a_j``:

    m = max(s, max_j a_j)                                    (1)
    z = exp(s - m) + sum_j exp(a_j - m)                      (2)
    o' = (exp(s - m) o + sum_j exp(a_j - m) v_j) / z         (3)
    s' = m + log z                                           (4)

which is exact: one softmax over all that was seen, in whatever pieces it came.

Backward is the same in any number of pieces. ``P_ij = exp(a_ij - s_i)`` (5) and ``rowsum(dP * P)``, which equals
``rowsum(d_out * out)`` (6), hold with the log-sum-exp ``s`` and the output of *all* parts; then each tile gives its own
pairs' share, and the shares add up.

References
----------
Milakov and Gimelshein (2018), "Online normalizer calculation for softmax", section 3.1.
Dao et al. (2022), "FlashAttention", Algorithm 5 (block-sparse).
"""

import numpy as np

from linattn_ref.kernels.parts import tiles_of
from linattn_ref.kernels.reference.buffers import all_into, into

__all__ = ["backward", "forward"]


def forward(q, k, v, key_mask, pattern, scale, *, out=None):
    """Output and row log-sum-exp of softmax attention over the pairs of a pattern.

    Parameters
    ----------
    q, k, v : ndarray, ``(..., N, D)``, ``(..., L, D)``, ``(..., L, M)``
    key_mask : ndarray of bool ``(..., L)`` or None
    pattern : tuple of `linattn_ref.kernels.parts.Part`
        Disjoint, with ``N`` queries and ``L`` keys; the same for all leading axes.
    scale : float
    out : ndarray ``(..., N, M)``, optional
        To be written to.

    Returns
    -------
    out : ndarray ``(..., N, M)``
    log_sum_exp : ndarray ``(..., N)``
        ``-inf`` for a query that sees nothing, whose output is 0.
    """
    o = np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype)
    log_sum_exp = np.full(q.shape[:-1], -np.inf, q.dtype)
    for part in pattern:
        for rows, columns, allowed in tiles_of(part):
            queries, keys = part.queries[rows], part.keys[columns]
            scores = _scores(q, k, key_mask, queries, keys, allowed, scale)  # (..., queries, keys)
            so_far = log_sum_exp[..., queries, None]  # (..., queries, 1)
            largest = np.maximum(so_far, scores.max(axis=-1, keepdims=True))  # (1)
            shift = _minus_infinity_to_zero(largest)
            old, weights = np.exp(so_far - shift), np.exp(scores - shift)
            total = old + weights.sum(axis=-1, keepdims=True)  # (2)
            seen = total != 0  # not "> 0": a NaN must stay one
            mixed = old * o[..., queries, :] + weights @ np.take(v, keys, axis=-2)  # (..., queries, M)
            o[..., queries, :] = np.divide(mixed, total, out=np.zeros_like(mixed), where=seen)  # (3)
            log_sum = np.log(total, out=np.full_like(total, -np.inf), where=seen)
            log_sum_exp[..., queries] = (shift + log_sum)[..., 0]  # (4)
    return into(out, o), log_sum_exp


def backward(d_out, q, k, v, out, log_sum_exp, key_mask, pattern, scale, *, gradients=(None, None, None)):
    """Gradients of :func:`forward`: ``d_q (..., N, D)``, ``d_k (..., L, D)``, ``d_v (..., L, M)``.

    ``gradients`` are arrays for them to be written to, or None.
    """
    d_q, d_k, d_v = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    row_sum = (d_out * out).sum(axis=-1, keepdims=True)  # (6)  (..., N, 1)
    shift = _minus_infinity_to_zero(log_sum_exp)[..., None]
    for part in pattern:
        for rows, columns, allowed in tiles_of(part):
            queries, keys = part.queries[rows], part.keys[columns]
            d_o, scores = np.take(d_out, queries, axis=-2), _scores(q, k, key_mask, queries, keys, allowed, scale)
            p = np.exp(scores - shift[..., queries, :])  # (5)  (..., queries, keys)
            d_p = d_o @ np.take(v, keys, axis=-2).swapaxes(-1, -2)  # (..., queries, keys)
            d_scores = p * (d_p - row_sum[..., queries, :])
            d_q[..., queries, :] += scale * (d_scores @ np.take(k, keys, axis=-2))
            d_k[..., keys, :] += scale * (d_scores.swapaxes(-1, -2) @ np.take(q, queries, axis=-2))
            d_v[..., keys, :] += p.swapaxes(-1, -2) @ d_o
    return all_into(gradients, (d_q, d_k, d_v))


def _scores(q, k, key_mask, queries, keys, allowed, scale):
    """``scale q k^T`` of one tile, ``-inf`` where the query may not look: ``(..., queries, keys)``."""
    scores = scale * (np.take(q, queries, axis=-2) @ np.take(k, keys, axis=-2).swapaxes(-1, -2))
    if key_mask is not None:
        allowed = allowed & key_mask[..., None, keys]
    scores[~np.broadcast_to(allowed, scores.shape)] = -np.inf
    return scores


def _minus_infinity_to_zero(x):
    """The maximum of a row that has seen nothing; with 0 in its place ``exp(-inf - shift)`` is 0 instead of NaN."""
    return np.where(np.isneginf(x), x.dtype.type(0), x)
