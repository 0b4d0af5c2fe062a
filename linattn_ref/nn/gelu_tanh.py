"""GELU by a hyperbolic tangent, the approximation that its paper gives; networks trained with it are run with it.

    u = s (x + c x^3),   s = sqrt(2 / pi),   c = 0.044715    (1)
    y = x (1 + tanh u) / 2                                   (2)

The gradient, by hand
---------------------
Since ``tanh' = 1 - tanh^2``, by the product rule and the chain rule

    u' = s (1 + 3 c x^2)                                     (3)
    dx = dy ((1 + tanh u) / 2 + x (1 - tanh^2 u) u' / 2)     (4)

>>> y, saved = forward(np.array([-1.0, 0.0, 1.0]))
>>> y.round(4), backward(np.ones(3), saved).x.round(4)
(array([-0.1588,  0.    ,  0.8412]), array([-0.083,  0.5  ,  1.083]))

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

S, C = math.sqrt(2 / math.pi), 0.044715
FAR = 40.0  # where 1 - tanh^2 has long been 0


class Saved(NamedTuple):
    x: Float[Array, "... E"]
    tanh: Float[Array, "... E"]  # tanh u


class Gradients(NamedTuple):
    x: Float[Array, "... E"]


@op
def forward(x: Float[Array, "... E"]) -> tuple[Array, Saved]:
    """Equations (1) and (2), number by number."""
    z = np.clip(x, -FAR, FAR)  # beyond, tanh is 1 or -1, and x^3 could overflow
    tanh = np.tanh(S * z * (1 + C * z * z))  # (1)
    return x * (1 + tanh) / 2, Saved(x, tanh)  # (2)


@op
def backward(d_y: Float[Array, "... E"], saved: Saved) -> Gradients:
    """Equations (3) and (4)."""
    x, tanh = saved
    x = np.clip(x, -FAR, FAR)
    slope = S * (1 + 3 * C * x * x)  # (3)
    return Gradients(d_y * ((1 + tanh) / 2 + x * (1 - tanh * tanh) * slope / 2))  # (4)
