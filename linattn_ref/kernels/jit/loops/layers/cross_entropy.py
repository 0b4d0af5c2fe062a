"""Cross-entropy and its gradient in Numba: `linattn_ref.nn.cross_entropy`, a row in the cache.

The gradient is made where the exponentials are: one array; each row is passed over three times.
"""

import math

import numpy as np

from linattn_ref.kernels.jit.loops.cache import kernel
from linattn_ref.kernels.jit.loops.inner import inner
from linattn_ref.kernels.jit.loops.rows import as_rows, without_gaps
from linattn_ref.kernels.jit.loops.simd.vector import broadcast, keep, lanes, largest_lane, maximum, total
from linattn_ref.kernels.jit.loops.simd.vector_exp import exp
from linattn_ref.kernels.jit.loops.views import columns_from, load_row, store_row

__all__ = ["forward"]


def forward(scores, targets, share):
    """The log-probability of each target, and the gradient of ``-sum_i share_i log p_i[t_i]``.

    Parameters
    ----------
    scores : ndarray ``(..., V)``
    targets : ndarray of int ``(...)``
        From 0 to ``V - 1``.
    share : ndarray ``(...)``
        Where it is 0 the gradient is 0, whatever the scores.
    """
    rows = as_rows(scores)
    log_p, d_scores = np.empty(len(rows), scores.dtype), np.empty_like(rows)
    _forward(len(rows), rows, without_gaps(targets, np.intp).ravel(), without_gaps(share).ravel(), d_scores, log_p)
    return log_p.reshape(targets.shape), d_scores.reshape(scores.shape)


@kernel(scores="rows V", targets="rows < V", share="rows", d_scores="rows V", log_p="rows")
def _forward(i, scores, targets, share, d_scores, log_p):
    some = slice(i, i + 1)
    log_p[i] = _row(scores[some], targets[i], share[i], d_scores[some])


@inner(error_model="numpy")
def _row(scores, target, share, d_scores):
    """One row, ``(1, V)``: (3) is written, (1) of the target returned."""
    shift, of_all = exp_of_row(scores, 0, d_scores)
    at_target = d_scores[0, target] / of_all
    scale_row(d_scores, 0, share / of_all)  # (3)
    d_scores[0, target] = share * (at_target - scores.dtype.type(1))  # (3)
    if not share > 0:
        d_scores[:] = 0
    return scores[0, target] - shift - math.log(of_all)  # (1)


@inner(error_model="numpy")
def exp_of_row(scores, i, y):
    """``exp(scores[i] - shift)`` in ``y[i]``; returns ``shift``, the largest of the row, and the sum."""
    zero, lowest = scores.dtype.type(0), scores.dtype.type(-np.inf)
    highest, added = broadcast(lowest), broadcast(zero)
    for first in range(0, scores.shape[1], lanes(scores)):
        some = columns_from(scores, first)
        highest = maximum(keep(load_row(some, i), 0, some.shape[1], lowest), highest)
    shift = largest_lane(highest)
    for first in range(0, scores.shape[1], lanes(scores)):
        some = columns_from(scores, first)
        e = exp(load_row(some, i) - broadcast(shift))
        store_row(columns_from(y, first), i, e)
        added = added + keep(e, 0, some.shape[1], zero)
    return shift, total(added)


@inner(error_model="numpy")
def scale_row(y, i, scale):
    """``y[i] *= scale``."""
    for first in range(0, y.shape[1], lanes(y)):
        some = columns_from(y, first)
        store_row(some, i, broadcast(scale) * load_row(some, i))
