"""The Gaussian error linear unit (Hendrycks and Gimpel 2016): ``x`` times the chance that a normal number is below it.

    Phi(x) = (1 + erf(x / sqrt 2)) / 2                       (1)
    y = x Phi(x)                                             (2)

The gradient, by hand
---------------------
``Phi'`` is the normal density, so that by the product rule

    Phi'(x) = exp(-x^2 / 2) / sqrt(2 pi)                     (3)
    dx = dy (Phi(x) + x Phi'(x))                             (4)

>>> import numpy as np
>>> y, saved = forward(np.array([-1.0, 0.0, 1.0]))
>>> y.round(4), backward(np.ones(3), saved).x.round(4)
(array([-0.1587,  0.    ,  0.8413]), array([-0.0833,  0.5   ,  1.0833]))

References
----------
Hendrycks and Gimpel (2016), "Gaussian error linear units", section 2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from linattn_ref.op import Array, Float, op

__all__ = ["Gradients", "Saved", "backward", "forward"]

FAR = 40.0  # where the density has long been 0


class Saved(NamedTuple):
    x: Float[Array, "... E"]
    below: Float[Array, "... E"]  # Phi(x)


class Gradients(NamedTuple):
    x: Float[Array, "... E"]


@op
def forward(x: Float[Array, "... E"]) -> tuple[Array, Saved]:
    """Equations (1) and (2), number by number."""
    from scipy.special import ndtr  # Phi, accurate also where 1 + erf cancels

    below = ndtr(x)  # (1)
    return x * below, Saved(x, below)  # (2)


@op
def backward(d_y: Float[Array, "... E"], saved: Saved) -> Gradients:
    """Equations (3) and (4)."""
    x, below = saved
    x = np.clip(x, -FAR, FAR)
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)  # (3)
    return Gradients(d_y * (below + x * density))  # (4)
