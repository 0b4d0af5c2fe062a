"""The feed-forward layer of a transformer: out to a wider space, number by number through a bend, and back.

    a = x W_1 + b_1,   h = f(a),   y = h W_2 + b_2           (1) (2) (3)

``f`` is GELU or ReLU: a module with a ``forward`` and a ``backward``. The gradient is that of its parts, last to first.

``a`` and ``h`` are four times as wide as ``x``, as a rule, and would be half of all that a network keeps. So ``h`` is
not kept: (2) is cheap, and the backward pass computes it again, with its slope. Where ``recompute`` asks for it, (1) is
computed again too, which costs a product (Chen et al. 2016 do so with whole networks).

>>> params = Params(*(affine.draw(*sizes, np.random.default_rng(0)) for sizes in ((2, 8), (8, 2))))
>>> y, saved = forward(np.ones((3, 2)), params)
>>> y.shape, backward(np.ones((3, 2)), saved).params.inner.w.shape
((3, 2), (2, 8))

References
----------
Vaswani et al. (2017), "Attention is all you need", section 3.3.
Chen et al. (2016), "Training deep nets with sublinear memory cost".
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array, check_array, check_shape
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.plain_numbers import plain_numbers
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
    """What the backward pass needs: ``x``, and a number a hidden unit."""

    inner: affine.Saved
    a: Array | None  # (..., F), but for b_1; None where it is computed again
    outer: affine.Params
    shape: tuple[int, ...]  # of y
    activation: Any  # the module of f, by its name
    kernels: Any  # the name of the room


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
    x: Array,
    params: Params,
    *,
    activation: ModuleType = gelu,
    recompute: bool = False,
    kernels: Any = reference,
    work: Work = fresh,
) -> tuple[Array, Saved]:
    """Equations (1)-(3): ``(..., E) -> (..., E)``.

    Parameters
    ----------
    x, params, kernels, work
        See `linattn_ref.nn`.
    activation : module
        ``f``: `linattn_ref.nn.gelu`, ``relu``, or another with such a pair.
    recompute : bool
        Do not keep ``a``; the backward pass computes (1) again.
    """
    a, inner = affine.forward.unchecked(x, params.inner, bias=False, work=work)  # (1) but for b_1  (..., F)
    h, _ = activation.forward.unchecked(a, bias=params.inner.b, keep=False, kernels=kernels, work=work)  # (1), (2)
    y, _ = affine.forward.unchecked(h, params.outer, work=work)  # (3)  (..., E)
    kept = None if recompute else a
    return y, Saved(inner, kept, params.outer, y.shape, name_of_room(activation), name_of_room(kernels))


def check_backward(d_y: Array, saved: Saved, **_: Any) -> None:
    """Shape and dtype of :func:`backward`."""
    check_array("d_y", d_y, ndim=1, dtype=saved.outer.w.dtype)
    check_shape("d_y", d_y, saved.shape, "of y")


@door(check_backward)
def backward(d_y: Array, saved: Saved, *, into: Params | None = None, work: Work = fresh) -> Gradients:
    """Back through (3), (2) and (1)."""
    into_inner, into_outer = (None, None) if into is None else into
    a, (x, of_inner), f, kernels = saved.a, saved.inner, room_of(saved.activation), room_of(saved.kernels)
    if a is None:
        a, _ = affine.forward.unchecked(x, of_inner, bias=False, work=work)  # (1) again
    h, bend = f.forward.unchecked(a, bias=of_inner.b, spend=saved.a is None, kernels=kernels, work=work)  # (2) again
    by_outer = affine.Saved(h, saved.outer)
    d_h, outer = affine.backward.unchecked(d_y, by_outer, into=into_outer, spend=True, work=work)  # of (3)
    d_a = f.backward.unchecked(d_h, bend, spend=True, work=work).x  # of (2)
    d_x, inner = affine.backward.unchecked(d_a, saved.inner, into=into_inner, work=work)  # of (1)
    return Gradients(d_x, Params(inner, outer))


@plain_numbers
def draw(width: int, hidden: int, rng: np.random.Generator, *, dtype: Any = np.float64) -> Params:
    """Parameters to start from, ``E = width`` and ``F = hidden``; see `affine.draw`."""
    return Params(affine.draw(width, hidden, rng, dtype=dtype), affine.draw(hidden, width, rng, dtype=dtype))
