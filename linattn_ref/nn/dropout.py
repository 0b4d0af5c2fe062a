"""Dropout (Srivastava et al. 2014): some numbers are left out at random, the others are scaled up to make up for it.

    y = x * m,   m = 1 / (1 - p) with probability 1 - p, else 0               (1)
    dx = dy * m                                                               (2)

so that ``y`` is ``x`` on average. The draw is an explicit generator's; with ``rng=None``, for evaluation, ``y = x``.

>>> y, saved = forward(np.ones(8), p=0.5, rng=np.random.default_rng(0))
>>> y
array([2., 2., 2., 0., 0., 0., 0., 0.])
>>> backward(np.ones(8), saved).x
array([2., 2., 2., 0., 0., 0., 0., 0.])
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.op import Array, Bool, Float, op
from linattn_ref.op.options import is_number

__all__ = ["Gradients", "Saved", "backward", "check_options", "forward"]


class Saved(NamedTuple):
    kept: Bool[Any, "... E"] | None  # None where all numbers are kept
    p: float


class Gradients(NamedTuple):
    x: Float[Array, "... E"]


def check_options(p: float, rng: Any, name: str = "p", **_: Any) -> None:
    """Check a probability, by the name that it has, and a generator or None."""
    if not (is_number(p) and 0 <= p < 1):
        raise ValueError(f"{name}: expected a probability of at least 0 and below 1, got {p!r}")
    if rng is not None and not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng: expected a numpy.random.Generator or None, got {type(rng).__name__}")


@op(look=check_options)
def forward(x: Float[Array, "... E"], *, p: float, rng: np.random.Generator | None) -> tuple[Array, Saved]:
    """Equation (1).

    Parameters
    ----------
    x : ndarray
    p : float
        The probability that a number is left out.
    rng : numpy.random.Generator or None
        None leaves none out.
    """
    if rng is None or p == 0:
        return x, Saved(None, p)
    kept = rng.random(x.shape, dtype=np.float32 if np.float32(p) < 1 else np.float64) >= p
    return x * kept * (1 / (1 - p)), Saved(kept, p)  # (1)


@op
def backward(d_y: Float[Array, "... E"], saved: Saved) -> Gradients:
    """Equation (2)."""
    kept, p = saved
    return Gradients(d_y if kept is None else d_y * kept * (1 / (1 - p)))  # (2)
