"""Cross-entropy and its gradient in one pass, as `linattn_ref.nn.cross_entropy` derives them.

log p_i = a_i - log sum_c exp(a_ic)                      (1)
da_ic = share_i (p_ic - [c = t_i])                       (3)
"""

import numpy as np

from linattn_ref.kernels.reference.buffers import into

__all__ = ["forward"]


def forward(scores, targets, share, *, d_scores=None):
    """The log-probability of each target, and the gradient of ``-sum_i share_i log p_i[t_i]``.

    Parameters
    ----------
    scores : ndarray ``(..., V)``
        ``a``.
    targets : ndarray of int ``(...)``
        ``t``, from 0 to ``V - 1``.
    share : ndarray ``(...)``
        Where it is 0 the gradient is 0, whatever the scores.
    d_scores : ndarray ``(..., V)``, optional
        To be written to.

    Returns
    -------
    log_p : ndarray ``(...)``
    d_scores : ndarray ``(..., V)``
    """
    t, shift = targets[..., None], scores - scores.max(axis=-1, keepdims=True)
    p = np.exp(shift)
    total = p.sum(axis=-1, keepdims=True)  # (..., 1)
    log_p = (np.take_along_axis(shift, t, axis=-1) - np.log(total))[..., 0]  # (1)
    p /= total
    np.put_along_axis(p, t, np.take_along_axis(p, t, axis=-1) - 1, axis=-1)
    return log_p, into(d_scores, np.where(share[..., None] > 0, share[..., None] * p, scores.dtype.type(0)))  # (3)
