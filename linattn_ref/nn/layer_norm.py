"""Layer norm as a layer: the pair of `linattn_ref.attention.layer_norm`, whose gradients can be added ``into`` others.

The formula and its gradient are there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from linattn_ref.attention import layer_norm
from linattn_ref.attention.arguments import Array, backward_check
from linattn_ref.attention.door import door
from linattn_ref.attention.layer_norm import Gradients, Params, Saved
from linattn_ref.nn.buffers import add_into

__all__ = ["Gradients", "Params", "Saved", "backward", "draw", "forward"]

forward = layer_norm.forward
like_y = backward_check(Saved, "y", "d_y")


def check_backward(d_y: Array, saved: Saved, **_: Any) -> None:
    """Shape and dtype of :func:`backward`."""
    like_y(d_y, saved)


@door(check_backward)
def backward(d_y: Array, saved: Saved, *, into: Params | None = None) -> Gradients:
    """Gradients of ``x`` and of gain and bias."""
    d_x, params = layer_norm.backward.unchecked(d_y, saved)
    return Gradients(d_x, add_into(into, params))


def draw(width: int, *, dtype: Any = np.float64) -> Params:
    """Parameters to start from: gain 1 and bias 0."""
    return Params(np.ones(width, dtype), np.zeros(width, dtype))
