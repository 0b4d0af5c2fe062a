"""Dropout (Srivastava et al. 2014): some numbers are left out at random, and the others made larger for it.

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

from linattn_ref.attention.arguments import Array, Mask, check_array, check_shape, is_number
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.nn.buffers import Work, fresh

__all__ = ["Gradients", "Saved", "backward", "forward"]


@documented
class Saved(NamedTuple):
    """What the backward pass needs."""

    kept: Mask | None  # the shape of x; None where all is kept
    p: float


@documented
class Gradients(NamedTuple):
    """Gradient of the input of ``forward``."""

    x: Array


def check_forward(x: Array, *, p: float, rng: Any, **_: Any) -> None:
    """Arguments of :func:`forward`."""
    check_array("x", x, ndim=1)
    check_options(p, rng)


def check_options(p: float, rng: Any, name: str = "p") -> None:
    """A probability, by the name that it has, and a generator or None."""
    if not (is_number(p) and 0 <= p < 1):
        raise ValueError(f"{name}: expected a probability of at least 0 and below 1, got {p!r}")
    if rng is not None and not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng: expected a numpy.random.Generator or None, got {type(rng).__name__}")


@door(check_forward)
def forward(x: Array, *, p: float, rng: np.random.Generator | None, work: Work = fresh) -> tuple[Array, Saved]:
    """Equation (1).

    Parameters
    ----------
    x : ndarray
    p : float
        The probability that a number is left out.
    rng : numpy.random.Generator or None
        None leaves none out.
    work
        See `linattn_ref.nn`.
    """
    if rng is None or p == 0:
        return x, Saved(None, p)
    kept = rng.random(x.shape, dtype=np.float32) >= p
    y = np.multiply(x, kept, out=work(x.shape, x.dtype))  # (1)
    y *= 1 / (1 - p)
    return y, Saved(kept, p)


def check_backward(d_y: Array, saved: Saved, **_: Any) -> None:
    """Shape of :func:`backward`."""
    check_array("d_y", d_y, ndim=1)
    if saved.kept is not None:
        check_shape("d_y", d_y, saved.kept.shape, "of y")


@door(check_backward)
def backward(d_y: Array, saved: Saved, *, work: Work = fresh) -> Gradients:
    """Equation (2)."""
    if saved.kept is None:
        return Gradients(d_y)
    d_x = np.multiply(d_y, saved.kept, out=work(d_y.shape, d_y.dtype))  # (2)
    d_x *= 1 / (1 - saved.p)
    return Gradients(d_x)
