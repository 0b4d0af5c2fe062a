"""Softmax attention in one pass over key tiles, in NumPy: online maximum and sum, no ``(N, L)`` array.

For one query the keys are read a tile at a time. Three things are carried: the largest score so far ``m``, the sum
``s`` of ``exp(score - m)`` and the weighted sum ``o`` of the values. When a tile raises the maximum from ``m`` to
``m'``, everything summed so far is multiplied by ``exp(m - m')``:

    m' = max(m, max_j a_j)                                   (1)
    s' = exp(m - m') s + sum_j exp(a_j - m')                 (2)
    o' = exp(m - m') o + sum_j exp(a_j - m') v_j             (3)
    out = o / s,   log_sum_exp = m + log s                   (4)

Backward needs no stored probabilities: ``P_ij = exp(a_ij - log_sum_exp_i)`` (5) gives them back tile by tile, and the
row sum ``rowsum(dP * P)`` equals ``rowsum(d_out * out)`` (6), because ``sum_j P_ij (d_out_i . v_j) = d_out_i . out_i``.

References
----------
Milakov and Gimelshein (2018), "Online normalizer calculation for softmax", Algorithm 3.
Rabe and Staats (2021), "Self-attention does not need O(n^2) memory".
Dao et al. (2022), "FlashAttention", Algorithms 1 and 4.
"""

import numpy as np

from linattn_ref.kernels.reference.buffers import all_into, into
from linattn_ref.kernels.reference.saturation import is_saturated, saturate, without_zero
from linattn_ref.kernels.reference.seen_product import product_of_seen

__all__ = ["backward", "forward", "sums_of_weights"]

TILE = 128  # keys a tile: scores take N * TILE numbers a head, whatever L is


def forward(q, k, v, key_mask, causal, scale, *, out=None):
    """Output and row log-sum-exp of softmax attention.

    Parameters
    ----------
    q, k, v : ndarray, ``(..., N, D)``, ``(..., L, D)``, ``(..., L, M)``
    key_mask : ndarray of bool ``(..., L)`` or None
    causal : bool
        Query ``i`` sees keys ``j <= i + (L - N)``.
    scale : float
    out : ndarray ``(..., N, M)``, optional
        To be written to.

    Returns
    -------
    out : ndarray ``(..., N, M)``
    log_sum_exp : ndarray ``(..., N)``
        ``-inf`` for a query that sees nothing, whose output is 0.
    """
    *leading, n, _ = q.shape
    running_max = np.full((*leading, n, 1), -np.inf, q.dtype)
    running_sum = np.zeros((*leading, n, 1), q.dtype)
    o = np.zeros((*leading, n, v.shape[-1]), q.dtype)
    for tile in _tiles(k):
        scores = _scores(q, k, key_mask, causal, scale, tile)  # (..., N, TILE)
        new_max = np.maximum(running_max, scores.max(axis=-1, keepdims=True))  # (1)
        shift = _minus_infinity_to_zero(new_max)
        decay = np.exp(running_max - shift)  # (..., N, 1)
        weights = np.exp(scores - shift)  # (..., N, TILE)
        running_sum = decay * running_sum + weights.sum(axis=-1, keepdims=True)  # (2)
        o = decay * o + product_of_seen(weights, v[..., tile, :])  # (3)  (..., N, M)
        running_max = new_max
    seen = running_sum != 0  # not "> 0": a NaN must stay one
    out = into(out, np.divide(o, running_sum, out=np.zeros_like(o), where=seen))  # (4)
    log_sum = np.log(running_sum, out=np.full_like(running_sum, -np.inf), where=seen)
    return out, (_minus_infinity_to_zero(running_max) + log_sum)[..., 0]


def backward(d_out, q, k, v, out, log_sum_exp, key_mask, causal, scale, *, gradients=(None, None, None)):
    """Gradients of :func:`forward`: ``d_q (..., N, D)``, ``d_k (..., L, D)``, ``d_v (..., L, M)``.

    ``gradients`` are arrays for them to be written to, or None.
    """
    if is_saturated(log_sum_exp):
        d_out = d_out / without_zero(sums_of_weights(q, k, log_sum_exp, key_mask, causal, scale))
    d_q, d_k, d_v = np.zeros_like(q), np.empty_like(k), np.empty_like(v)
    row_sum = (d_out * out).sum(axis=-1, keepdims=True)  # (6)  (..., N, 1)
    shift = _minus_infinity_to_zero(log_sum_exp)[..., None]
    for tile in _tiles(k):
        p = np.exp(_scores(q, k, key_mask, causal, scale, tile) - shift)  # (5)  (..., N, TILE)
        d_p = d_out @ v[..., tile, :].swapaxes(-1, -2)  # (..., N, TILE)
        d_scores = np.where(p == 0, p, p * (d_p - row_sum))  # (..., N, TILE); what is not seen may be NaN
        d_q += scale * product_of_seen(d_scores, k[..., tile, :])
        d_k[..., tile, :] = scale * product_of_seen(d_scores.swapaxes(-1, -2), q)
        d_v[..., tile, :] = product_of_seen(p.swapaxes(-1, -2), d_out)
    return all_into(gradients, (d_q, d_k, d_v))


def sums_of_weights(q, k, log_sum_exp, key_mask, causal, scale):
    """``sum_j exp(a_ij - log_sum_exp_i)``, ``(..., N)``: 1, but for `saturation`."""
    shift, total = _minus_infinity_to_zero(log_sum_exp)[..., None], np.zeros_like(log_sum_exp)
    for tile in _tiles(k):
        total += np.exp(_scores(q, k, key_mask, causal, scale, tile) - shift).sum(axis=-1)
    return total


def _tiles(k):
    return (slice(start, start + TILE) for start in range(0, k.shape[-2], TILE))


def _scores(q, k, key_mask, causal, scale, tile):
    """``scale q k^T`` over one tile of keys, ``-inf`` where the query may not look: ``(..., N, TILE)``."""
    n, n_keys = q.shape[-2], k.shape[-2]
    keys = k[..., tile, :]
    scores = saturate(scale * (q @ keys.swapaxes(-1, -2)), q, keys)
    if key_mask is not None:
        scores[~np.broadcast_to(key_mask[..., None, tile], scores.shape)] = -np.inf
    if causal:
        future = np.arange(n_keys)[tile] > np.arange(n)[:, None] + (n_keys - n)  # (N, TILE)
        scores[..., future] = -np.inf
    return scores


def _minus_infinity_to_zero(x):
    """The maximum of a row that has seen nothing; with 0 in its place ``exp(-inf - shift)`` is 0 instead of NaN."""
    return np.where(np.isneginf(x), x.dtype.type(0), x)
