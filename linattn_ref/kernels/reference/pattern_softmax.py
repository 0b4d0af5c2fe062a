"""Softmax attention over an allowed set of (query, key) pairs, in NumPy: cost proportional to the pairs.

The set is a tuple of disjoint parts (`linattn_ref.kernels.parts`), and each part is read in tiles: some queries, and
the keys that any of them sees. Online softmax, as in `softmax`, goes on from tile to tile and from part to part. What a
query has seen so far is three things: its largest score ``m``, the sum ``s`` of ``exp(score - m)``, and the sum ``o``
of the values with these weights. With the tile's scores ``a_j``:

    m' = max(m, max_j a_j)                                   (1)
    s' = exp(m - m') s + sum_j exp(a_j - m')                 (2)
    o' = exp(m - m') o + sum_j exp(a_j - m') v_j             (3)
    out = o / s,   log_sum_exp = m + log s                   (4)

Backward is the same in any number of pieces. ``P_ij = exp(a_ij - log_sum_exp_i)`` (5) and ``rowsum(dP * P)``, which
equals ``rowsum(d_out * out)`` (6), hold with the log-sum-exp and the output of *all* parts; then each tile gives its
own pairs' share, and the shares add up.

References
----------
Milakov and Gimelshein (2018), "Online normalizer calculation for softmax", section 3.1.
Dao et al. (2022), "FlashAttention", Algorithm 5 (block-sparse).
"""

import numpy as np

from linattn_ref.kernels.parts import tiles_of
from linattn_ref.kernels.reference.buffers import all_into, into
from linattn_ref.kernels.reference.saturation import is_saturated, saturate, without_zero
from linattn_ref.kernels.reference.seen_product import product_of_seen

__all__ = ["backward", "forward", "sums_of_weights"]


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
    maximum, total = np.full((*q.shape[:-1], 1), -np.inf, q.dtype), np.zeros((*q.shape[:-1], 1), q.dtype)
    for part in pattern:
        for rows, columns, allowed in tiles_of(part):
            queries, keys = part.queries[rows], part.keys[columns]
            scores = _scores(q, k, key_mask, queries, keys, allowed, scale)  # (..., queries, keys)
            before = maximum[..., queries, :]  # (..., queries, 1)
            largest = np.maximum(before, scores.max(axis=-1, keepdims=True))  # (1)
            shift = _minus_infinity_to_zero(largest)
            decay, weights = np.exp(before - shift), np.exp(scores - shift)
            maximum[..., queries, :] = largest
            total[..., queries, :] = decay * total[..., queries, :] + weights.sum(axis=-1, keepdims=True)  # (2)
            mixed = decay * o[..., queries, :] + product_of_seen(
                weights, np.take(v, keys, axis=-2)
            )  # (..., queries, M)
            o[..., queries, :] = mixed  # (3)
    seen = total != 0  # not "> 0": a NaN must stay one
    o = np.divide(o, total, out=np.zeros_like(o), where=seen)  # (4)
    log_sum = np.log(total, out=np.full_like(total, -np.inf), where=seen)
    return into(out, o), (_minus_infinity_to_zero(maximum) + log_sum)[..., 0]


def backward(d_out, q, k, v, out, log_sum_exp, key_mask, pattern, scale, *, gradients=(None, None, None)):
    """Gradients of :func:`forward`: ``d_q (..., N, D)``, ``d_k (..., L, D)``, ``d_v (..., L, M)``.

    ``gradients`` are arrays for them to be written to, or None.
    """
    if is_saturated(log_sum_exp):
        d_out = d_out / without_zero(sums_of_weights(q, k, log_sum_exp, key_mask, pattern, scale))
    d_q, d_k, d_v = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    row_sum = (d_out * out).sum(axis=-1, keepdims=True)  # (6)  (..., N, 1)
    shift = _minus_infinity_to_zero(log_sum_exp)[..., None]
    for part in pattern:
        for rows, columns, allowed in tiles_of(part):
            queries, keys = part.queries[rows], part.keys[columns]
            d_o, scores = np.take(d_out, queries, axis=-2), _scores(q, k, key_mask, queries, keys, allowed, scale)
            p = np.where(np.isneginf(scores), q.dtype.type(0), np.exp(scores - shift[..., queries, :]))  # (5)
            d_p = d_o @ np.take(v, keys, axis=-2).swapaxes(-1, -2)  # (..., queries, keys)
            d_scores = np.where(p == 0, p, p * (d_p - row_sum[..., queries, :]))  # what is not seen may be NaN
            d_q[..., queries, :] += scale * product_of_seen(d_scores, np.take(k, keys, axis=-2))
            d_k[..., keys, :] += scale * product_of_seen(d_scores.swapaxes(-1, -2), np.take(q, queries, axis=-2))
            d_v[..., keys, :] += product_of_seen(p.swapaxes(-1, -2), d_o)
    return all_into(gradients, (d_q, d_k, d_v))


def sums_of_weights(q, k, log_sum_exp, key_mask, pattern, scale):
    """``sum_j exp(a_ij - log_sum_exp_i)``, ``(..., N)``: 1, but for `saturation`."""
    shift, total = _minus_infinity_to_zero(log_sum_exp), np.zeros_like(log_sum_exp)
    for part in pattern:
        for rows, columns, allowed in tiles_of(part):
            queries, keys = part.queries[rows], part.keys[columns]
            scores = _scores(q, k, key_mask, queries, keys, allowed, scale)  # (..., queries, keys)
            total[..., queries] += np.exp(scores - shift[..., queries, None]).sum(axis=-1)
    return total


def _scores(q, k, key_mask, queries, keys, allowed, scale):
    """``scale q k^T`` of one tile, ``-inf`` where the query may not look: ``(..., queries, keys)``."""
    some_q, some_k = np.take(q, queries, axis=-2), np.take(k, keys, axis=-2)
    scores = saturate(scale * (some_q @ some_k.swapaxes(-1, -2)), some_q, some_k)
    if key_mask is not None:
        allowed = allowed & key_mask[..., None, keys]
    scores[~np.broadcast_to(allowed, scores.shape)] = -np.inf
    return scores


def _minus_infinity_to_zero(x):
    """The maximum of a row that has seen nothing; with 0 in its place ``exp(-inf - shift)`` is 0 instead of NaN."""
    return np.where(np.isneginf(x), x.dtype.type(0), x)
