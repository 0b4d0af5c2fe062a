"""One token of softmax attention with a key/value cache, in NumPy.

    a = scale K q                                            (1)  (t,)
    w = exp(a - max a)                                       (2)  (t,)
    out = V^T w / sum(w)                                     (3)  (M,)

``K`` and ``V`` are the first ``t`` rows of arrays with room for more. They are looked at where they stand: a copy of
them would take longer than all three lines.
"""

from functools import partial

import numpy as np

from linattn_ref.kernels.reference.saturation import saturate
from linattn_ref.kernels.turns import check_room, take_turn

__all__ = ["bind_step", "step"]


def step(q, k, v, length, scale):
    """The output of one query that sees the first ``length`` rows of a cache.

    Parameters
    ----------
    q : ndarray ``(..., D)``
    k, v : ndarray ``(..., capacity, D)``, ``(..., capacity, M)``
        What stands in the rows after ``length`` changes nothing.
    length : int
        ``t``, at least 1.
    scale : float

    Returns
    -------
    out : ndarray ``(..., M)``
    """
    keys, values = k[..., :length, :], v[..., :length, :]  # (..., t, D), (..., t, M)
    w = (keys @ (scale * q)[..., None])[..., 0]  # (1)  (..., t); one such array, worked on in place
    saturate(w[..., None, :], q[..., None, :], keys)
    w -= w.max(axis=-1, keepdims=True)
    np.exp(w, out=w)  # (2)
    return (w[..., None, :] @ values)[..., 0, :] / w.sum(axis=-1, keepdims=True)  # (3)  (..., M)


def bind_step(q, k_t, v_t, k, v, length, rows, scale, out, *, step=step):
    """A token a call: a function without arguments that adds a row to a cache and writes ``out``.

    Parameters
    ----------
    q, k_t, v_t : ndarray, ``(..., D)``, ``(..., D)``, ``(..., M)``
    k, v : ndarray ``(..., capacity, D)``, ``(..., capacity, M)``
    length, rows : ndarray of int ``(1,)``
        How many rows of the cache are this function's, and how many are written; see `linattn_ref.attention.ownership`.
    scale : float
    out : ndarray ``(..., M)``
    step : function
        :func:`step`, or another room's.
    """
    return partial(_append_and_step, q, k_t, v_t, k, v, length, rows, scale, out, step)


def _append_and_step(q, k_t, v_t, k, v, length, rows, scale, out, step):
    check_room(length, k.shape[-2])
    take_turn(rows, length)
    t = int(length[0])
    k[..., t - 1, :], v[..., t - 1, :] = k_t, v_t
    out[...] = step(q, k, v, t, scale)
