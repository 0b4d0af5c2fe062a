"""The feed-forward layer of a transformer: out to a wider space, number by number through a bend, and back.

    a = x W_1 + b_1,   h = f(a),   y = h W_2 + b_2           (1) (2) (3)

``f`` is GELU or ReLU: a module with a ``forward`` and a ``backward``. The gradient is that of its parts, last to first.

>>> params = Params(*(affine.draw(*sizes, np.random.default_rng(0)) for sizes in ((2, 8), (8, 2))))
>>> y, saved = forward(np.ones((3, 2)), params)
>>> y.shape, backward(np.ones((3, 2)), saved).params.inner.w.shape
((3, 2), (2, 8))

References
----------
Vaswani et al. (2017), "Attention is all you need", section 3.3.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array, check_array, check_shape
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.rooms import name_of_room, room_of
from linattn_ref.kernels import reference
from linattn_ref.nn import affine, gelu
from linattn_ref.nn.buffers import Work, fresh

__all__ = ["Gradients", "Params", "Saved", "backward", "draw", "forward"]


@documented
class Params(NamedTuple):
    """What is learned."""

    inner: affine.Params  # (E, F), (F,)
    outer: affine.Params  # (F, E), (E,)


@documented
class Saved(NamedTuple):
    """What the backward pass needs: ``x``, a number a hidden unit for the slope of ``f``, and ``h``."""

    inner: affine.Saved
    bend: Any  # f's
    outer: affine.Saved
    activation: Any  # the module of f, by its name


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    x: Array  # (..., E)
    params: Params


def check_forward(x: Array, params: Params, **_: Any) -> None:
    """Shapes and dtypes of :func:`forward`."""
    affine.check_forward(x, params.inner)
    check_array("params.outer.w", params.outer.w, dtype=x.dtype)
    check_shape("params.outer.w", params.outer.w, (params.inner.w.shape[1], params.outer.w.shape[-1]), "(F, E)")
    check_array("params.outer.b", params.outer.b, ndim=1, dtype=x.dtype)
    check_shape("params.outer.b", params.outer.b, params.outer.w.shape[1:], "(E,)")


@door(check_forward)
def forward(
    x: Array, params: Params, *, activation: ModuleType = gelu, kernels: Any = reference, work: Work = fresh
) -> tuple[Array, Saved]:
    """Equations (1)-(3): ``(..., E) -> (..., E)``.

    Parameters
    ----------
    x, params, kernels, work
        See `linattn_ref.nn`.
    activation : module
        ``f``: `linattn_ref.nn.gelu`, ``relu``, or another with such a pair.
    """
    a, inner = affine.forward.unchecked(x, params.inner, bias=False, work=work)  # (1) but for b_1  (..., F)
    h, bend = activation.forward.unchecked(
        a, bias=params.inner.b, spend=True, kernels=kernels, work=work
    )  # (1), (2)  (..., F)
    y, outer = affine.forward.unchecked(h, params.outer, work=work)  # (3)  (..., E)
    return y, Saved(inner, bend, outer, name_of_room(activation))


def check_backward(d_y: Array, saved: Saved, **_: Any) -> None:
    """Shape and dtype of :func:`backward`."""
    affine.check_backward(d_y, saved.outer)


@door(check_backward)
def backward(d_y: Array, saved: Saved, *, into: Params | None = None, work: Work = fresh) -> Gradients:
    """Back through (3), (2) and (1)."""
    into_inner, into_outer = (None, None) if into is None else into
    d_h, outer = affine.backward.unchecked(d_y, saved.outer, into=into_outer, work=work)  # of (3)
    d_a = room_of(saved.activation).backward.unchecked(d_h, saved.bend, spend=True, work=work).x  # of (2)
    d_x, inner = affine.backward.unchecked(d_a, saved.inner, into=into_inner, work=work)  # of (1)
    return Gradients(d_x, Params(inner, outer))


def draw(width: int, hidden: int, rng: np.random.Generator, *, dtype: Any = np.float64) -> Params:
    """Parameters to start from, ``E = width`` and ``F = hidden``; see `affine.draw`."""
    return Params(affine.draw(width, hidden, rng, dtype=dtype), affine.draw(hidden, width, rng, dtype=dtype))
