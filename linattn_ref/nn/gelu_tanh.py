"""GELU by a hyperbolic tangent, the approximation that its paper gives; networks trained with it are run with it.

    u = s (x + c x^3),   y = x (1 + tanh u) / 2              (1)  s = sqrt(2 / pi), c = 0.044715
    dx = dy ((1 + tanh u) / 2 + x (1 - tanh^2 u) s (1 + 3 c x^2) / 2)         (2)

What is kept is the slope, the bracket of (2), in place of ``x``.

>>> y, saved = forward(np.array([-1.0, 0.0, 1.0]))
>>> y.round(4), backward(np.ones(3), saved).x.round(4)
(array([-0.1588,  0.    ,  0.8412]), array([-0.083,  0.5  ,  1.083]))

References
----------
Hendrycks and Gimpel (2016), "Gaussian error linear units", section 2.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from linattn_ref.attention.arguments import Array
from linattn_ref.attention.door import door
from linattn_ref.attention.rooms import name_of_room
from linattn_ref.kernels import reference
from linattn_ref.nn.buffers import Work, fresh
from linattn_ref.nn.gelu import Gradients, Saved, backward, check_forward

__all__ = ["Gradients", "Saved", "backward", "forward"]

S, C = math.sqrt(2 / math.pi), 0.044715


@door(check_forward)
def forward(
    x: Array,
    *,
    bias: Array | None = None,
    spend: bool = False,
    keep: bool = True,
    kernels: Any = reference,
    work: Work = fresh,
) -> tuple[Array, Any]:
    """Equation (1), number by number; arguments as in `gelu`, and no room has more than this text."""
    if bias is not None:
        x = np.add(x, bias, out=x if spend else work(x.shape, x.dtype))
    square = x * x
    tanh = np.tanh(S * x * (1 + C * square))  # (1)
    half = np.add(tanh, 1, out=work(x.shape, x.dtype))
    half *= 0.5  # (1 + tanh u) / 2
    if not keep:
        return np.multiply(half, x, out=half), None  # (1)
    slope = np.multiply(x, 0.5 * S * (1 + 3 * C * square) * (1 - tanh * tanh), out=work(x.shape, x.dtype))
    slope += half  # (2)
    half *= x  # (1)
    return half, Saved(slope, name_of_room(kernels))
