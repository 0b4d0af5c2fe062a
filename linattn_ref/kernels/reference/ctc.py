"""CTC's sums over paths and their gradient, as `linattn_ref.nn.ctc` derives them.

y_t = softmax(a_t)                                       (1)
alpha_t(s) = y_t(l'_s) sum_{r -> s} alpha_(t-1)(r)       (4)
beta_t(s) = sum_{s -> r} beta_(t+1)(r) y_(t+1)(l'_r)     (5)
p = sum_s alpha_t(s) beta_t(s)                           (6)
da_t(k) = y_t(k) - sum over s with l'_s = k of alpha_t(s) beta_t(s) / p          (7), (8)

Backwards in time, (5) is (4): ``beta`` is what arrives in a state before its own frame is counted.
"""

import numpy as np

from linattn_ref.kernels.reference.buffers import into

__all__ = ["forward"]

BLANK = 0


def forward(scores, targets, frames, lengths, share, *, d_scores=None):
    """Loss of each sequence, and the gradient of ``sum_b share_b loss_b``.

    Parameters
    ----------
    scores : ndarray ``(B, T, V)``
        ``a``.
    targets : ndarray of int ``(B, S)``
        Labels from 1 to ``V - 1``.
    frames, lengths : ndarray of int ``(B,)``
        How many frames and labels of each sequence count.
    share : ndarray ``(B,)``
    d_scores : ndarray ``(B, T, V)``, optional
        To be written to: 0 in the other frames, and where the loss is infinite.

    Returns
    -------
    losses : ndarray ``(B,)``
        ``-log p``, infinite where no path says the labels.
    d_scores : ndarray ``(B, T, V)``
    """
    losses, gradient = np.zeros(len(scores), scores.dtype), np.zeros_like(scores)
    for b, (n_frames, n_labels) in enumerate(zip(frames, lengths, strict=True)):
        losses[b], d_a = _sequence(scores[b, :n_frames], targets[b, :n_labels])
        gradient[b, :n_frames] = share[b] * d_a
    return losses, into(d_scores, gradient)


def _sequence(scores, labels):
    """Loss and gradient of one: ``scores (T, V)``, ``labels (S,)``."""
    if len(scores) == 0:
        return (np.inf if len(labels) else 0.0), scores
    shift = scores - scores.max(axis=-1, keepdims=True)
    log_y = shift - np.log(np.exp(shift).sum(axis=-1, keepdims=True))  # (1)  (T, V)
    states = np.full(2 * len(labels) + 1, BLANK)  # l'
    states[1::2] = labels
    skip = np.full(len(states), -np.inf, scores.dtype)  # log 1 where the blank before may be left out
    skip[3::2][labels[1:] != labels[:-1]] = 0
    _, log_alpha = _sums(log_y[:, states], skip)  # (4)  (T, 2 S + 1)
    log_beta, _ = _sums(log_y[::-1, states[::-1]], np.roll(skip, -2)[::-1])  # (5), backwards
    log_both = log_alpha + log_beta[::-1, ::-1]
    log_p = np.logaddexp.reduce(log_both[-1])  # (6)
    if log_p == -np.inf:
        return np.inf, np.zeros_like(scores)
    d_scores = np.exp(log_y)
    for s, symbol in enumerate(states):
        d_scores[:, symbol] -= np.exp(log_both[:, s] - log_p)  # (7), (8)
    return -log_p, d_scores


def _sums(log_y, skip):
    """``log sum_{r -> s} alpha_(t-1)(r)`` and ``log alpha_t(s)`` of (4), for ``log y_t(l'_s) (T, states)``."""
    arrived = np.full_like(log_y, -np.inf)
    alpha = np.empty_like(log_y)
    arrived[0, :2] = 0
    alpha[0] = arrived[0] + log_y[0]
    for t in range(1, len(log_y)):
        arrived[t] = alpha[t - 1]
        arrived[t, 1:] = np.logaddexp(arrived[t, 1:], alpha[t - 1, :-1])
        arrived[t, 2:] = np.logaddexp(arrived[t, 2:], alpha[t - 1, :-2] + skip[2:])
        alpha[t] = arrived[t] + log_y[t]  # (4)
    return arrived, alpha
