"""Positions: what tells attention, to which order means nothing, where a token stands.

Learned, a row of a table for each place, or Vaswani's sinusoids, which are fixed:

    y_i = x_i + T[first + i]                                 (1)
    dx = G,   dT[first + i] = G_i, summed over leading axes  (2)

    T[p, 2c] = sin(p / 10000^(2c/E)),   T[p, 2c + 1] = cos(p / 10000^(2c/E))  (3)

with ``G`` the gradient of a loss with respect to ``y``. ``first`` is where a continued sequence goes on.

>>> sinusoidal(2, 4).round(2)
array([[0.  , 1.  , 0.  , 1.  ],
       [0.84, 0.54, 0.01, 1.  ]])

References
----------
Vaswani et al. (2017), "Attention is all you need", section 3.5.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array, check_array, check_shape, check_sizes
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.nn.buffers import Work, fresh

__all__ = ["Gradients", "Params", "Saved", "backward", "beside", "draw", "forward", "sinusoidal"]


@documented
class Params(NamedTuple):
    """What is learned."""

    table: Array  # (places, E)


@documented
class Saved(NamedTuple):
    """What the backward pass needs: no array but the parameters' own."""

    shape: tuple[int, ...]  # of x
    first: int
    params: Params


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    x: Array  # (..., N, E)
    params: Params


def check_forward(x: Array, params: Params, *, first: int = 0, **_: Any) -> None:
    """Arguments of :func:`forward`."""
    check_array("x", x)
    check_array("params.table", params.table, dtype=x.dtype)
    check_shape("params.table", params.table, (len(params.table), x.shape[-1]), "(places, E)")
    if isinstance(first, bool) or not isinstance(first, (int, np.integer)) or first < 0:
        raise ValueError(f"first: expected an integer of at least 0, got {first!r}")
    if first + x.shape[-2] > len(params.table):
        raise ValueError(
            f"x: {x.shape[-2]} positions from {first} on need a table of {first + x.shape[-2]} places,"
            f" got {len(params.table)}"
        )


@door(check_forward)
def forward(x: Array, params: Params, *, first: int = 0, work: Work = fresh) -> tuple[Array, Saved]:
    """Equation (1): ``(..., N, E)``."""
    y = np.add(x, params.table[first : first + x.shape[-2]], out=work(x.shape, x.dtype))  # (1)
    return y, Saved(x.shape, first, params)


def check_backward(d_y: Array, saved: Saved, **_: Any) -> None:
    """Shape and dtype of :func:`backward`."""
    check_array("d_y", d_y, dtype=saved.params.table.dtype)
    check_shape("d_y", d_y, saved.shape, "of y")


@door(check_backward)
def backward(d_y: Array, saved: Saved, *, into: Params | None = None, work: Work = fresh) -> Gradients:
    """Equation (2)."""
    table = saved.params.table
    if into is None:
        into = Params(work(table.shape, table.dtype))
        into.table[...] = 0
    places = slice(saved.first, saved.first + d_y.shape[-2])
    into.table[places] += d_y.sum(axis=tuple(range(d_y.ndim - 2)))  # (2)  (N, E)
    return Gradients(d_y, into)


@plain_numbers
def draw(places: int, width: int, rng: np.random.Generator, *, scale: float = 0.02, dtype: Any = np.float64) -> Params:
    """A table to start from: normal numbers times ``scale``."""
    return Params((scale * rng.standard_normal((places, width))).astype(dtype))


@plain_numbers
def sinusoidal(length: int, width: int, *, dtype: Any = np.float64) -> Array:
    """Equation (3): ``(length, width)``, constants; ``x + sinusoidal(...)`` is all there is to do with them."""
    check_sizes(length=length, width=width)
    pair = np.arange(width) // 2  # c
    angle = np.arange(length)[:, None] / 10000 ** (2 * pair / width)  # (length, width)
    return np.where(np.arange(width) % 2, np.cos(angle), np.sin(angle)).astype(dtype)  # (3)


def beside(x: Array, constants: Array, *, work: Work = fresh) -> Array:
    """``[x_i, c_i]``: ``(..., N, E)`` and ``(N or more, F)`` to ``(..., N, E + F)``; ``dx`` is the first part of G."""
    width = x.shape[-1]
    y = work((*x.shape[:-1], width + constants.shape[-1]), x.dtype)
    y[..., :width], y[..., width:] = x, constants[: x.shape[-2]]
    return y
