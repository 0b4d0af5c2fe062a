"""The rectified linear unit.

    y = max(x, 0)                                            (1)
    dx = dy if x > 0 else 0                                  (2)

>>> y, saved = forward(np.array([-1.0, 0.0, 2.0]))
>>> y, backward(np.ones(3), saved).x
(array([0., 0., 2.]), array([0., 0., 1.]))
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.op import Array, Bool, Float, op

__all__ = ["Gradients", "Saved", "backward", "forward"]


class Saved(NamedTuple):
    positive: Bool[Any, "... E"]


class Gradients(NamedTuple):
    x: Float[Array, "... E"]


@op
def forward(x: Float[Array, "... E"]) -> tuple[Array, Saved]:
    """Equation (1), number by number."""
    return np.maximum(x, 0), Saved(x > 0)  # (1)


@op
def backward(d_y: Float[Array, "... E"], saved: Saved) -> Gradients:
    """Equation (2)."""
    return Gradients(d_y * saved.positive)  # (2)
