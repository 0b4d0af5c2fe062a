"""Learning rates as functions of the step's number, counted from 0; (5) goes by evaluations instead.

    warm-up     peak (t + 1) / warm-up steps, then peak                                      (1)
    milestones  rate factor^(number of milestones passed)                                    (2)
    cosine      last + (peak - last) (1 + cos(pi t / T)) / 2                                 (3)
    Noam        factor E^(-1/2) min((t + 1)^(-1/2), (t + 1) W^(-3/2))                        (4)
    plateau     factor^(how often ``patience`` evaluations in a row brought no new minimum)  (5)

>>> [round(cosine(t, peak=1.0, steps=4), 2) for t in range(5)]
[1.0, 0.85, 0.5, 0.15, 0.0]

References
----------
Loshchilov and Hutter (2017), "SGDR: stochastic gradient descent with warm restarts", equation 5 (cosine).
Vaswani et al. (2017), "Attention is all you need", equation 3 (Noam).
Katharopoulos et al. (2020), "Transformers are RNNs", section 4.3, has a rate that is "divided by 2 when the validation
error stops decreasing" (plateau).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from linattn_ref.op import op
from linattn_ref.op.options import check_sizes, plain
from linattn_ref.training.checks import check_rate

__all__ = ["cosine", "milestones", "noam", "plateau", "warm_up"]


def look(t: int, **others: Any) -> None:
    """Steps are counted from 0, and rates are numbers."""
    check_sizes(0, t=t)
    check_rate(**{name: others[name] for name in ("peak", "rate", "last", "factor") if name in others})
    at = others.get("at", ())
    if not isinstance(at, (Sequence, np.ndarray)):
        raise TypeError(f"at: expected a sequence of steps, got {at!r}")
    for milestone in at:
        check_sizes(0, at=plain(milestone))


@op(look=look)
def warm_up(t: int, *, peak: float, warmup: int) -> float:
    """Equation (1)."""
    check_sizes(warmup=warmup)
    return peak * min(1.0, (t + 1) / warmup)  # (1)


@op(look=look)
def milestones(t: int, *, rate: float, at: Sequence[int], factor: float = 0.1) -> float:
    """Equation (2): ``rate``, multiplied by ``factor`` at each step in ``at``."""
    return rate * factor ** sum(t >= milestone for milestone in at)  # (2)


@op(look=look)
def cosine(t: int, *, peak: float, steps: int, last: float = 0.0) -> float:
    """Equation (3) for ``T = steps``, and ``last`` from then on."""
    check_sizes(steps=steps)
    return last + (peak - last) * (1 + math.cos(math.pi * min(t / steps, 1.0))) / 2  # (3)


@op(look=look)
def noam(t: int, *, width: int, warmup: int, factor: float = 1.0) -> float:
    """Equation (4) for ``E = width`` and ``W = warmup``."""
    check_sizes(width=width, warmup=warmup)
    return factor * width**-0.5 * min((t + 1) ** -0.5, (t + 1) * warmup**-1.5)  # (4)


@op
def plateau(found: Sequence[float], *, factor: float = 0.5, patience: int = 1) -> float:
    """Equation (5): what to multiply a rate with after evaluations that gave ``found``, in their order.

    >>> plateau([0.9, 0.5, 0.6, 0.4, 0.4, 0.4], patience=2)
    0.5
    """
    check_rate(factor=factor)
    check_sizes(patience=patience)
    times, best, waited = 0, math.inf, 0
    for value in found:
        best, waited = (value, 0) if value < best else (best, waited + 1)
        if waited == patience:
            times, waited = times + 1, 0
    return factor**times  # (5)
