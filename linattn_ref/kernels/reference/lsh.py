"""LSH attention in NumPy: softmax attention within sorted chunks, round after round.

For every round the rows of ``q``, ``k`` and ``v`` are brought into sorted order and cut into ``G`` chunks of ``C``.
A chunk of queries meets the ``2 C`` keys of the chunk before and its own:

            C queries          2 C keys
    chunk g [ q q q q ]  meets [ k k k k | k k k k ]         scores (G, C, 2 C)
                                 chunk g-1  chunk g

    a_ij = scale q_i . k_j                                   (1)
    m_r = max_j a_ij                                         (2)
    s_r = sum_j exp(a_ij - m_r) / c_ij                       (3)  c_ij the number of rounds in which i meets j
    o_r = sum_j exp(a_ij - m_r) / c_ij v_j                   (4)
    m' = max(m, m_r),   x' = exp(m - m') x + exp(m_r - m') x_r  for x = s and o                              (5)
    out = o / s,   z = m + log s                             (6)

To count ``c_ij`` takes no ``(N, N)`` array: for each pair in a chunk the numbers of the chunks in which its two tokens
lie in the other rounds are compared.

Backward, a pair has the share ``P_ij / c_ij = exp(a_ij - z) / c_ij`` (7) in each round where it is met, with the ``z``
of all rounds; so no round needs to know another's sum.

References
----------
Kitaev, Kaiser and Levskaya (2020), "Reformer: the efficient transformer", section 2 and appendix A.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.kernels.reference.buffers import all_into, into
from linattn_ref.kernels.reference.saturation import is_saturated, saturate, without_zero
from linattn_ref.kernels.reference.seen_product import product_of_seen

__all__ = ["Meeting", "backward", "forward", "sums_of_weights"]


def forward(q, k, v, order, seen, chunk, causal, scale, *, out=None):
    """Output and row log-sum-exp of softmax attention to all tokens that are met in any round.

    Parameters
    ----------
    q, k, v : ndarray, ``(..., N, D)``, ``(..., N, D)``, ``(..., N, M)``
    order : ndarray of integers ``(..., rounds, N)``
        The tokens in each round's sorted order: a permutation.
    seen : ndarray of integers ``(...)``
        How many tokens take part: the first so many of each order.
    chunk : int
        ``C``.
    causal : bool
        Token ``i`` sees tokens ``j < i``; nobody sees itself.
    scale : float
    out : ndarray ``(..., N, M)``, optional
        To be written to.

    Returns
    -------
    out : ndarray ``(..., N, M)``
    log_sum_exp : ndarray ``(..., N)``
        ``-inf`` for a token that sees nobody, whose output is 0.
    """
    shape = v.shape
    q, k, v, order, seen = _flat(q, k, v, order, seen)
    o, s = np.zeros(v.shape, v.dtype), np.zeros(v.shape[:2], v.dtype)
    m = np.full(v.shape[:2], -np.inf, v.dtype)
    for r in range(order.shape[1]):
        met = _meet(r, order, seen, chunk, causal, q.dtype)
        scores = _scores(q, k, met, scale)  # (1)  (heads, G, C, 2 C)
        row_max = scores.max(axis=-1, keepdims=True)  # (2)  (heads, G, C, 1)
        weights = np.exp(scores - _minus_infinity_to_zero(row_max)) / met.rounds
        m_r, s_r = (_unsorted(x, order[:, r]) for x in (row_max[..., 0], weights.sum(axis=-1)))  # (3)  (heads, N)
        o_r = _unsorted(product_of_seen(weights, v[met.heads, met.keys]), order[:, r])  # (4)  (heads, N, M)
        highest = np.maximum(m, m_r)
        old, new = (np.exp(x - _minus_infinity_to_zero(highest)) for x in (m, m_r))  # (heads, N)
        m, s, o = highest, old * s + new * s_r, old[..., None] * o + new[..., None] * o_r  # (5)
    o /= _zero_to_one(s)[..., None]  # (6)
    return into(out, o.reshape(shape)), (_minus_infinity_to_zero(m) + _log(s)).reshape(shape[:-1])


def backward(d_out, q, k, v, out, log_sum_exp, order, seen, chunk, causal, scale, *, gradients=(None, None, None)):
    """Gradients of :func:`forward`: ``d_q``, ``d_k``, ``d_v``, shaped like their inputs.

    ``gradients`` are arrays for them to be written to, or None.
    """
    shapes = q.shape, k.shape, v.shape
    if is_saturated(log_sum_exp):
        d_out = d_out / without_zero(sums_of_weights(q, k, log_sum_exp, order, seen, chunk, causal, scale))
    row_sum = (d_out * out).sum(axis=-1).reshape(-1, q.shape[-2])  # (heads, N)
    shift = _minus_infinity_to_zero(log_sum_exp).reshape(row_sum.shape)
    d_out = d_out.reshape(-1, *d_out.shape[-2:])
    q, k, v, order, seen = _flat(q, k, v, order, seen)
    d_q, d_k, d_v = (np.zeros(x.shape, x.dtype) for x in (q, k, v))
    n = q.shape[1]
    for r in range(order.shape[1]):
        met = _meet(r, order, seen, chunk, causal, q.dtype)
        q_r, g = (x[met.heads, met.queries] for x in (q, d_out))  # (heads, G, C, D), (heads, G, C, M)
        k_r, v_r = (x[met.heads, met.keys] for x in (k, v))  # (heads, G, 2 C, D), (heads, G, 2 C, M)
        p = _weights(q, k, met, scale, shift)  # (7)  (heads, G, C, 2 C)
        d_p = g @ v_r.swapaxes(-1, -2)  # (heads, G, C, 2 C)
        d_scores = np.where(p == 0, p, p * (d_p - row_sum[met.heads, met.queries][..., None]))  # NaN may not be seen
        tokens = met.heads[..., 0], order[:, r]  # each token once, so that += meets no index twice
        d_q[tokens] += _in_order(scale * product_of_seen(d_scores, k_r), n)
        d_k[tokens] += _in_order(_both_shares(scale * product_of_seen(d_scores.swapaxes(-1, -2), q_r)), n)
        d_v[tokens] += _in_order(_both_shares(product_of_seen(p.swapaxes(-1, -2), g)), n)
    return all_into(gradients, [x.reshape(shape) for x, shape in zip((d_q, d_k, d_v), shapes, strict=True)])


def sums_of_weights(q, k, log_sum_exp, order, seen, chunk, causal, scale):
    """``sum_j exp(a_ij - z_i)``, ``(..., N)``: 1, but for `saturation`."""
    shift = _minus_infinity_to_zero(log_sum_exp).reshape(-1, q.shape[-2])
    q, k, _, order, seen = _flat(q, k, q, order, seen)
    total = np.zeros_like(shift)
    for r in range(order.shape[1]):
        met = _meet(r, order, seen, chunk, causal, q.dtype)
        total += _unsorted(_weights(q, k, met, scale, shift).sum(axis=-1), order[:, r])
    return total.reshape(log_sum_exp.shape)


class Meeting(NamedTuple):
    """The chunks of one round, the last filled up with token 0, which is not allowed there."""

    heads: Any  # (heads, 1, 1), to index with
    queries: Any  # (heads, G, C), tokens
    keys: Any  # (heads, G, 2 C), tokens
    allowed: Any  # (heads, G, C, 2 C) bool
    rounds: Any  # (heads, G, C, 2 C), c_ij; 1 where not allowed


def _meet(r, order, seen, chunk, causal, dtype):
    heads, rounds, n = order.shape
    groups = -(-n // chunk)
    head = np.arange(heads)[:, None, None]
    queries = np.zeros((heads, groups * chunk), order.dtype)
    queries[:, :n] = order[:, r]
    real = (np.arange(groups * chunk) < seen[:, None]).reshape(heads, groups, chunk)
    queries = queries.reshape(heads, groups, chunk)
    keys, real_keys = _with_the_one_before(queries), _with_the_one_before(real)  # (heads, G, 2 C)
    allowed = real[..., None] & real_keys[..., None, :]  # (heads, G, C, 2 C)
    allowed &= queries[..., None] > keys[..., None, :] if causal else queries[..., None] != keys[..., None, :]
    count = np.zeros(allowed.shape, dtype)
    for other in range(rounds):
        chunks = np.empty(order.shape[::2], order.dtype)  # (heads, N)
        np.put_along_axis(chunks, order[:, other], np.arange(n, dtype=order.dtype)[None] // chunk, axis=-1)
        ahead = chunks[head, queries][..., None] - chunks[head, keys][..., None, :]  # (heads, G, C, 2 C)
        count += (ahead == 0) | (ahead == 1)
    return Meeting(head, queries, keys, allowed, np.where(allowed, count, count.dtype.type(1)))


def _with_the_one_before(x):
    """Each chunk's row with that of the chunk before in front, zeros for the first: ``(heads, G, C)`` to ``2 C``."""
    before = np.zeros_like(x)
    before[:, 1:] = x[:, :-1]
    return np.concatenate([before, x], axis=-1)


def _scores(q, k, met, scale):
    """Equation (1), ``-inf`` where not allowed: ``(heads, G, C, 2 C)``."""
    some_q, some_k = q[met.heads, met.queries], k[met.heads, met.keys]
    scores = saturate(scale * (some_q @ some_k.swapaxes(-1, -2)), some_q, some_k)
    return np.where(met.allowed, scores, scores.dtype.type(-np.inf))


def _weights(q, k, met, scale, shift):
    """Equation (7): ``(heads, G, C, 2 C)``."""
    return np.exp(_scores(q, k, met, scale) - shift[met.heads, met.queries][..., None]) / met.rounds


def _both_shares(x):
    """What keys get as those of their own chunk and as those of the one before: ``(..., G, 2 C, W)`` to ``C``."""
    chunk = x.shape[-2] // 2
    own = x[..., chunk:, :]
    own[:, :-1] += x[:, 1:, :chunk]
    return own


def _in_order(x, n):
    """Chunks put end to end: ``(heads, G, C, W)`` to ``(heads, N, W)``."""
    return x.reshape(len(x), -1, x.shape[-1])[:, :n]


def _unsorted(x, order):
    """From the sorted order back to that of the sequence: ``(heads, G, C, ...)`` to ``(heads, N, ...)``."""
    heads, n = order.shape
    result = np.empty((heads, n, *x.shape[3:]), x.dtype)
    result[np.arange(heads)[:, None], order] = x.reshape(heads, -1, *x.shape[3:])[:, :n]
    return result


def _flat(q, k, v, order, seen):
    """All leading axes as one."""
    heads = math.prod(q.shape[:-2])
    return (*(x.reshape(heads, *x.shape[-2:]) for x in (q, k, v, order)), seen.reshape(heads))


def _minus_infinity_to_zero(x):
    """The maximum of a row that has seen nobody; with 0 in its place ``exp(-inf - shift)`` is 0 instead of NaN."""
    return np.where(np.isneginf(x), x.dtype.type(0), x)


def _log(x):
    """``log(x)``, and ``-inf`` for 0 without a warning."""
    return np.log(x, out=np.full_like(x, -np.inf), where=x != 0)  # not "> 0": a NaN must stay one


def _zero_to_one(x):
    """To divide by, where there is nothing to divide."""
    return np.where(x == 0, x.dtype.type(1), x)
