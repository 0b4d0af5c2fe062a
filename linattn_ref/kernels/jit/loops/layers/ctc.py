"""CTC in Numba: `linattn_ref.nn.ctc`, a state per lane.

A row holds a number per state, and on each side two that are -inf, from which nothing comes. So a step of (4) adds up
three pieces of the row before, and one of (5) three of the row after::

                -inf -inf | 0   1   2   3  ... 2S | -inf -inf ...
    (4)                     s-2 s-1  s                              into s
    (5)                              s  s+1 s+2                     out of s

A sequence is a task. It keeps ``log alpha`` of all frames; of ``log beta`` one row.

Over hundreds of frames these logarithms become large, and in float32 their last digits coarse: a gradient would be off
by some thousandths. So from each row the largest number of the row before is taken away, and added to ``log p`` alone;
what is left of (7) is a softmax over the states, because they sum to ``p`` in every frame, by (6).
"""

import math

import numpy as np

from linattn_ref.kernels.jit.loops.cache import kernel
from linattn_ref.kernels.jit.loops.inner import inner
from linattn_ref.kernels.jit.loops.layers.cross_entropy import exp_of_row, scale_row
from linattn_ref.kernels.jit.loops.rows import without_gaps
from linattn_ref.kernels.jit.loops.simd.log_sum import log_sum_exp
from linattn_ref.kernels.jit.loops.simd.vector import broadcast, lanes, largest_lane, load, maximum, store, total
from linattn_ref.kernels.jit.loops.simd.vector_exp import exp
from linattn_ref.kernels.jit.loops.views import columns_from

__all__ = ["forward"]

SIDE = 2  # numbers beside a row


def forward(scores, targets, frames, lengths, share):
    """The loss of each sequence, and the gradient of ``sum_b share_b loss_b``.

    Parameters
    ----------
    scores : ndarray ``(B, T, V)``
    targets : ndarray of int ``(B, S)``
        Labels from 1 to ``V - 1``.
    frames, lengths : ndarray of int ``(B,)``
        How many frames and labels of each sequence count; the gradient of the other frames is 0.
    share : ndarray ``(B,)``
    """
    losses, d_scores = np.empty(len(scores), scores.dtype), np.empty(scores.shape, scores.dtype)
    targets = np.where(np.arange(targets.shape[-1]) < lengths[:, None], targets, 0)  # the others may be anything
    counts = [without_gaps(x, np.intp) for x in (targets, frames, lengths)]
    _forward(len(scores), without_gaps(scores), *counts, without_gaps(share), losses, d_scores)
    return losses, d_scores


# --- Compiled -------------------------------------------------------------------------------------------------------


@kernel(scores="B T V", targets="B S < V", frames="B <= T", lengths="B <= S", share="B", losses="B", d_scores="B T V")
def _forward(b, scores, targets, frames, lengths, share, losses, d_scores):
    d_scores[b, frames[b] :] = 0
    used = slice(0, frames[b])
    losses[b] = _sequence(scores[b, used], targets[b, : lengths[b]], share[b], d_scores[b, used])


@inner(error_model="numpy")
def _sequence(scores, labels, share, d_scores):
    """The loss of one, ``scores (T, V)``; its share of the gradient is written."""
    infinite = scores.dtype.type(np.inf)
    if len(scores) == 0:
        return infinite if labels.size else scores.dtype.type(0)
    tops, logs = _softmax(scores, d_scores)  # (1)
    states, skip = _states(labels, scores)
    n = states.size
    log_y, log_alpha = np.full_like(skip, -infinite), np.full((len(scores), skip.shape[1]), -infinite)
    for s in range(min(n, 2)):
        log_alpha[0, SIDE + s] = scores[0, states[s]] - tops[0] - logs[0]
    taken_away = 0.0
    for t in range(1, len(scores)):
        shift = _largest(log_alpha[t - 1 : t])
        taken_away += shift
        _emissions(log_y, scores[t], tops[t], logs[t] + shift, states)
        _arrive(log_alpha[t : t + 1], log_alpha[t - 1 : t], skip, log_y)  # (4)
    last, before = log_alpha[-1, SIDE + n - 1], log_alpha[-1, SIDE + n - 2]
    if last == -infinite and before == -infinite:
        d_scores[:] = 0
        return infinite
    _gradient(scores, tops, logs, states, skip, log_alpha, share, d_scores)
    highest = max(last, before)
    return -(taken_away + highest + math.log(math.exp(last - highest) + math.exp(before - highest)))  # (6)


@inner(error_model="numpy")
def _gradient(scores, tops, logs, states, skip, log_alpha, share, d_scores):
    """(5), (7) and (8), from the last frame to the first; ``d_scores`` holds ``y``."""
    log_beta, log_y = np.full_like(skip, -np.inf), np.full_like(skip, -np.inf)
    both = np.empty_like(skip)
    log_beta[0, SIDE + max(states.size - 2, 0) : SIDE + states.size] = 0
    for t in range(len(scores) - 1, -1, -1):
        if t < len(scores) - 1:
            _leave(log_beta, log_y, skip)  # (5)
        _share_of_states(both, log_alpha[t : t + 1], log_beta)
        _less_states(d_scores[t], both[0], states, share)  # (7), (8)
        _emissions(log_y, scores[t], tops[t], logs[t] + _largest(log_beta), states)


@inner(error_model="numpy")
def _softmax(scores, y):
    """(1) of every frame; their largest scores are returned, and the logarithms of the sums over these."""
    tops, logs = np.empty(len(scores), scores.dtype), np.empty(len(scores), scores.dtype)
    for t in range(len(scores)):
        shift, of_all = exp_of_row(scores, t, y)
        scale_row(y, t, scores.dtype.type(1) / of_all)
        tops[t], logs[t] = shift, math.log(of_all)
    return tops, logs


@inner
def _states(labels, like):
    """``l'``; and a row that is 0 where the blank before may be left out, -inf elsewhere."""
    states = np.zeros(2 * labels.size + 1, np.intp)
    width = -(-states.size // lanes(like)) * lanes(like)  # whole Vectors
    skip = np.full((1, SIDE + width + SIDE), like.dtype.type(-np.inf))
    for i in range(labels.size):
        states[2 * i + 1] = labels[i]
        if i and labels[i] != labels[i - 1]:
            skip[0, SIDE + 2 * i + 1] = 0
    return states, skip


@inner(forceinline=True)
def _vectors(row):
    """Where those of a row begin."""
    return range(SIDE, row.shape[1] - SIDE, lanes(row))


@inner(forceinline=True)
def _load(row, first):
    return load(columns_from(row, first), 0)


@inner(forceinline=True)
def _store(row, first, x):
    store(columns_from(row, first), 0, x)


@inner
def _emissions(log_y, scores, top, rest, states):
    for s in range(states.size):
        log_y[0, SIDE + s] = (scores[states[s]] - top) - rest


@inner
def _arrive(alpha, before, skip, log_y):
    """A step of (4)."""
    lowest = broadcast(log_y.dtype.type(np.finfo(log_y.dtype).min))
    for s in _vectors(alpha):
        leap = _load(before, s - 2) + _load(skip, s)
        arrived = log_sum_exp(_load(before, s), _load(before, s - 1), leap, lowest)
        _store(alpha, s, arrived + _load(log_y, s))


@inner
def _leave(beta, log_y, skip):
    """A step of (5); ``log_y`` is of the frame after."""
    lowest = broadcast(log_y.dtype.type(np.finfo(log_y.dtype).min))
    for s in _vectors(beta):
        _store(beta, s, _load(beta, s) + _load(log_y, s))
    for s in _vectors(beta):  # what is to the right is not yet overwritten
        leap = _load(beta, s + 2) + _load(skip, s + 2)
        _store(beta, s, log_sum_exp(_load(beta, s), _load(beta, s + 1), leap, lowest))


@inner(error_model="numpy")
def _share_of_states(both, log_alpha, log_beta):
    """``alpha_t(s) beta_t(s) / p``, with (6) for ``p``."""
    for s in _vectors(both):
        _store(both, s, _load(log_alpha, s) + _load(log_beta, s))
    shift, p = broadcast(_largest(both)), broadcast(both.dtype.type(0))
    for s in _vectors(both):
        e = exp(_load(both, s) - shift)
        _store(both, s, e)
        p = p + e
    scale = broadcast(both.dtype.type(1) / total(p))
    for s in _vectors(both):
        _store(both, s, scale * _load(both, s))


@inner
def _largest(row):
    """Of all states; the least finite number if all are -inf."""
    highest = broadcast(row.dtype.type(np.finfo(row.dtype).min))
    for s in _vectors(row):
        highest = maximum(_load(row, s), highest)
    return largest_lane(highest)


@inner
def _less_states(d_scores, both, states, share):
    """(8): every second state is the blank, the others are labels, some of them the same."""
    blank = both[SIDE]
    for s in range(1, states.size, 2):
        d_scores[states[s]] -= both[SIDE + s]
        blank += both[SIDE + s + 1]
    d_scores[0] -= blank
    for k in range(d_scores.size):
        d_scores[k] *= share
