"""The features of queries and keys, and the scale that keeps exponential ones in the range of float32.

A map such as Performer's is ``phi(x) = exp(a(x)) * b(x)``, and ``exp(a)`` leaves the range of float32 for inputs a
little larger than usual. In the ratio of linear attention scales cancel: with any number ``r_c`` per feature and
``t_i`` per query,

    sum_c phi_c(q_i) phi_c(k_j)
        = exp(t_i) sum_c [exp(a_c(q_i) + r_c - t_i) b_c(q_i)] [exp(a_c(k_j) - r_c) b_c(k_j)]         (1)

and ``exp(t_i)`` divides out. So keys are taken relative to ``r``, and queries relative to

    t_i = max_c (a_c(q_i) + r_c)                             (2)

The choice of ``r``
-------------------
Let ``r_c`` be the largest ``a_c(k_j)`` of the keys that are seen. Then no exponent is above 0: nothing overflows. And
in the feature that attains (2) the query's part is 1 and some key's part is 1: the sum of (1) over the keys does not
underflow to 0 either, whatever the inputs. (With one maximum for all features it would, as soon as queries and keys
are large in different features.)

A causal query must not depend on the keys of its future, nor on their scale: one late key with a huge exponent
would underflow everything before it. So ``r`` follows the running maximum, and ``S`` and ``Z`` are rescaled when it
rises, as in online softmax:

    S <- exp(r_old - r_new) S                                (3)

But a key a little above ``r`` does no harm, since ``exp(40) = 2e17`` is far inside the range of float32. So ``r`` rises
only when a key is more than ``RISE = 40`` above it. The rows between two rises are a :class:`Piece`, and within a piece
the causal product is the ordinary one. A new piece begins each time that the exponents have risen by 40, whatever the
length: ordinary inputs have one piece.

How many there are depends on the numbers, so they have to be known before the work goes on. With arrays on a GPU, a
causal pass waits for two numbers, and for three more each time that ``r`` rises (:func:`told`). Nothing else waits.

The gradient
------------
Since ``eps`` is 0, the output does not depend on ``r`` and ``t``: they are constants in the backward pass. A gradient
of ``S`` goes back through (3) multiplied by the same factor.

References
----------
Milakov and Gimelshein (2018), "Online normalizer calculation for softmax".
"""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.features.feature_map_protocol import FeatureMap
from linattn_ref.attention.parts.masks import in_range, shown
from linattn_ref.kernels.common import exponential_features
from linattn_ref.kernels.common.exponential_features import rows_at_a_time
from linattn_ref.op import Array

__all__ = ["Features", "decay_between", "decayed", "features_backward", "join", "risen", "rises", "scaled_features"]

RISE = 40.0  # S stays below exp(40) per key: with 1e6 keys, values of 1e6 and C = 1e3 that is 2e32, float32 holds 3e38
ALL = slice(None)


class Piece(NamedTuple):
    """Rows of a causal pass that share one scale."""

    queries: slice
    keys: slice
    decay: Array | None  # (..., 1 or C), the factor of (3) for the state before them; None for 1


class Features(NamedTuple):
    """``phi`` of queries and keys, each piece on its scale."""

    q: Array  # (..., N, C)
    k: Array  # (..., L, C), masked rows 0
    decay: Array | None  # (..., 1 or C), the factor of (3) for the state before all keys; None for 1
    shared: int  # how many keys all queries see: L, or in a causal pass the first L - N
    pieces: tuple[Piece, ...]  # of a causal pass, over the other keys
    log_scale: Array | None  # (..., 1 or C), r after the last key; None where phi is not an exponential
    saved_q: Any  # what feature_map.backward needs
    saved_k: Any
    feature_map: FeatureMap
    key_mask: Any  # (..., L)


def scaled_features(q, k, feature_map, key_mask=None, causal=False, log_scale=None, kernels=None):
    """``phi(q)`` and ``phi(k)``, to go with a state whose scale is ``log_scale`` (None: no state).

    The keys before the first query's own are seen by all queries, so that ``r`` starts from their maximum.
    """
    kernel = getattr(kernels, "exponential_features", exponential_features)
    (exponent_q, factor_q), (exponent_k, factor_k) = feature_map.split(q), feature_map.split(k)  # (..., 1 or C)
    exponent_k = in_range(exponent_k)
    if key_mask is not None:
        exponent_k = np.where(key_mask[..., None], exponent_k, exponent_k.dtype.type(-np.inf))
    before = np.full_like(k, np.finfo(k.dtype).min, shape=(*k.shape[:-2], 1)) if log_scale is None else log_scale
    shared = k.shape[-2] - q.shape[-2] if causal else k.shape[-2]
    first = np.maximum(before, kernel.largest(exponent_k[..., :shared, :])) if shared else before

    scale_k = [(slice(0, shared), first), *(rises(exponent_k, shared, first) if causal else ())]  # rows, and their r
    scale_q = [(slice(i.start - shared, i.stop - shared), r) for i, r in scale_k[1:]] if causal else [(ALL, first)]
    phi_q = _exp(kernel.of_queries, _own(exponent_q, q), scale_q, factor_q)
    phi_k = _exp(kernel.of_keys, _own(exponent_k, k), scale_k, factor_k)

    decays = [decay_between(old, new) for (_, old), (_, new) in pairwise(scale_k)]
    pieces = tuple(Piece(i, j, decay) for (i, _), (j, _), decay in zip(scale_q, scale_k[1:], decays, strict=False))
    decay, last = decay_between(before, first), scale_k[-1][1]
    scaled = phi_q, phi_k, decay, shared, pieces, last
    return Features(*scaled, (q, phi_q), (k, phi_k), feature_map, key_mask)


def features_backward(d_phi_q, d_phi_k, phi):
    """Gradients of ``q`` and ``k``, the scale a constant."""
    d_q = phi.feature_map.backward(d_phi_q, phi.saved_q)  # (..., N, D)
    d_k = shown(phi.feature_map.backward(d_phi_k, phi.saved_k), phi.key_mask)  # (..., L, D)
    return d_q, d_k


def rises(exponent, start, log_scale):
    """Cut the rows from ``start`` on where ``r`` has to rise: pieces in order, and the ``r`` of each."""
    length = exponent.shape[-2]
    while start < length:
        log_scale = risen(log_scale, exponent[..., start, :])
        stop = _next_rise(exponent, start + 1, log_scale)
        yield slice(start, stop), log_scale
        start = stop


def risen(log_scale, exponent):
    """``r`` for a row of exponents ``(..., 1 or C)``: the same array, or a new one if it is too low for some head."""
    above = (exponent > log_scale + RISE).any(axis=-1, keepdims=True)  # (..., 1): no head moves another's scale
    if told(above.any()):
        return np.where(above, np.maximum(log_scale, exponent), log_scale)
    return log_scale


def _next_rise(exponent, start, log_scale):
    """The first row from ``start`` on that is more than ``RISE`` above ``log_scale``; the length, if there is none."""
    length, limit = exponent.shape[-2], (log_scale + RISE)[..., None, :]
    window = rows_at_a_time(exponent)  # doubled each time, so that the search costs no more than the piece it finds
    while start < length:
        rows = exponent[..., start : start + window, :]
        if told((~(rows.max(axis=-2, keepdims=True) <= limit)).any()):  # most have none, and a maximum is soon found
            above = (rows > limit).any(axis=-1).reshape(-1, rows.shape[-2]).any(axis=0)  # (window,)
            first = told(np.where(above.any(), above.argmax(), above.size))  # none, if only NaN was above
            if first < above.size:
                return start + first
        start, window = start + window, 2 * window
    return length


def told(x):
    """A number of an array as Python's. From a GPU this waits, and copies it to the host; nothing else does."""
    return x.item()


def decay_between(old, new):
    """The factor of (3), ``exp(r_old - r_new)``, ``(..., 1 or C)``; None where nothing has changed."""
    return None if old is new else np.exp(old - new)


def decayed(s, z, decay):
    """Equation (3) for ``S (..., C, M)`` and ``Z (..., C)``, or for their gradients."""
    return (s, z) if decay is None else (decay[..., None] * s, decay * z)


def _own(exponent, x):
    """An array to write over: a copy, if ``exponent`` is the caller's own array."""
    return exponent.copy() if np.may_share_memory(exponent, x) else exponent


def _exp(of_rows, exponent, scales, factor):
    """The scaled features (1), written over their exponents."""
    for rows, r in scales:
        x = exponent[..., rows, :]
        if x.shape[-2]:
            phi = of_rows(x, r)
            if phi.shape == exponent.shape:  # all rows, and so without a copy
                exponent = phi
            elif not np.may_share_memory(phi, exponent):
                x[...] = phi
    return exponent if factor is None else exponent * factor


def join(parts, axis=-2):
    """The parts joined along one axis, without a copy if there is only one."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=axis)
