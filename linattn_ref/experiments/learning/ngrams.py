"""What counts alone say of a hidden token: yardsticks for a network that reads all around it.

    p(t) = (c(t) + 1) / (c + V)                                (1)  pieces alone
    p(t | s) = (c(s, t) + T(s) p(t)) / (c(s) + T(s))           (2)  after the piece before it
    p(t | s, r) = p(t | s) p(r | t) / sum_u p(u | s) p(r | u)  (3)  between two, if each depends on the last one alone

``c`` are counts of the training text and ``T(s)`` is how many different pieces follow ``s``: that much of the whole is
left to what was never seen after ``s``.

References
----------
Witten and Bell (1991), "The zero-frequency problem", method C (2).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from linattn_ref.op import Array

__all__ = ["between", "counted", "surprise"]

Tokens = NDArray[np.integer[Any]]


def counted(training: Tokens, size: int) -> tuple[Array, Any, NDArray[np.intp], NDArray[np.intp]]:
    """``p(t)`` of (1), ``c(s, t)`` as a sparse matrix, ``T(s)``, and ``c(s) + T(s)``."""
    from scipy import sparse  # here: --help does not need it

    alone = (np.bincount(training, minlength=size) + 1) / (training.size + size)  # (1)
    counts = sparse.csr_array((np.ones(training.size - 1), (training[:-1], training[1:])), shape=(size, size))
    kinds = np.diff(counts.indptr)
    return alone, counts, kinds, np.bincount(training[:-1], minlength=size) + kinds


def surprise(training: Tokens, before: Tokens, hidden: Tokens, size: int) -> dict[str, float]:
    """The mean of ``-log p`` in nats, by (1) and by (2), of the ``hidden`` tokens that stood after those ``before``.

    Parameters
    ----------
    training : ndarray of int ``(pieces,)``
        A text, one piece after the other.
    before, hidden : ndarray of int ``(places,)``
    size : int
        ``V``.
    """
    p, counts, kinds, total = counted(training, size)
    alone = p[hidden]  # (1)  (places,)
    smoothed = (counts[before, hidden] + kinds[before] * alone) / np.maximum(total[before], 1)
    after = np.where(total[before] > 0, smoothed, alone)  # (2)
    return {"pieces alone": float(-np.log(alone).mean()), "pairs of pieces": float(-np.log(after).mean())}


def between(training: Tokens, before: Tokens, hidden: Tokens, after: Tokens, size: int) -> float:
    """The mean of ``-log p`` by (3). A neighbour of -1 is not known, and its factor is left out.

    Parameters
    ----------
    training, size
        See `surprise`.
    before, hidden, after : ndarray of int ``(places,)``
    """
    alone, counts, kinds, total = counted(training, size)
    to_alone = np.where(total > 0, kinds / np.maximum(total, 1), 1.0)  # of (2), the share that is (1)
    rows = counts.multiply(1 / np.maximum(total, 1)[:, None]).tocsr()
    columns = rows.tocsc()
    nats = np.empty(len(hidden))
    for i, (s, t, r) in enumerate(zip(before, hidden, after, strict=True)):
        p = alone.copy() if s < 0 else to_alone[s] * alone + rows[[s]].toarray()[0]  # (2)  (V,)
        if r >= 0:
            p *= to_alone * alone[r] + columns[:, [r]].toarray()[:, 0]
        nats[i] = -np.log(p[t] / p.sum())  # (3)
    return float(nats.mean())
