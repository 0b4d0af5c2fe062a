"""The feed-forward layer of a transformer: to a wider space, through a nonlinearity element by element, and back.

    a = x W_1 + b_1                                          (1)  (..., F), as a rule F = 4 E
    h = f(a)                                                 (2)
    y = h W_2 + b_2                                          (3)  (..., E)

``f`` is GELU or ReLU: a module with a ``forward`` and a ``backward``. The gradient is that of the parts, last to first:

    dh, dW_2, db_2   of (3), from dy                         (4)
    da = f'(a) * dh                                          (5)
    dx, dW_1, db_1   of (1), from da                         (6)

>>> params = draw(2, 8, np.random.default_rng(0))
>>> y, saved = forward(np.ones((3, 2)), params)
>>> y.shape, backward(np.ones((3, 2)), saved).params.inner.w.shape
((3, 2), (2, 8))

References
----------
Vaswani et al. (2017), "Attention is all you need", section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.nn import affine, gelu
from linattn_ref.op import Array, Float, Of, op

__all__ = ["Gradients", "Params", "Saved", "backward", "draw", "forward"]


class Params(NamedTuple):
    inner: Of[affine.Params, "E F"]
    outer: Of[affine.Params, "F Y"]  # Y = E, as a rule


class Saved(NamedTuple):
    inner: Of[affine.Saved, "E F"]
    bend: Any  # the activation's
    backward: Callable[..., Any]  # the activation's
    outer: Of[affine.Saved, "F Y"]


class Gradients(NamedTuple):
    x: Float[Array, "... E"]
    params: Params


def look(activation: Any, **_: Any) -> None:
    if not (hasattr(activation, "forward") and hasattr(activation, "backward")):
        raise TypeError(f"activation: expected a module with forward and backward, such as gelu, got {activation!r}")


@op(look=look)
def forward(x: Float[Array, "... E"], params: Params, *, activation: ModuleType = gelu) -> tuple[Array, Saved]:
    """Equations (1)-(3).

    Parameters
    ----------
    x : ndarray ``(..., E)``
    params : Params
    activation : module
        ``f``: `linattn_ref.nn.gelu`, ``relu``, or another with such a pair.
    """
    a, inner = affine.forward(x, params.inner)  # (1)
    h, bend = activation.forward(a)  # (2)
    y, outer = affine.forward(h, params.outer)  # (3)
    return y, Saved(inner, bend, activation.backward, outer)


@op
def backward(d_y: Float[Array, "... Y"], saved: Saved) -> Gradients:
    """Back through (3), (2) and (1)."""
    d_h, outer = affine.backward(d_y, saved.outer)  # (4)
    d_a = saved.backward(d_h, saved.bend).x  # (5)
    d_x, inner = affine.backward(d_a, saved.inner)  # (6)
    return Gradients(d_x, Params(inner, outer))


@op
def draw(width: int, hidden: int, rng: np.random.Generator, *, dtype: Any = np.float64) -> Params:
    """Draw parameters to start from, ``E = width`` and ``F = hidden``; see `affine.draw`."""
    return Params(affine.draw(width, hidden, rng, dtype=dtype), affine.draw(hidden, width, rng, dtype=dtype))
