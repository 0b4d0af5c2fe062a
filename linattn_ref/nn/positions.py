"""Positions: they tell attention, which ignores the order of tokens, where each token stands.

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

from linattn_ref.op import Array, Float, op
from linattn_ref.op.options import check_sizes

__all__ = ["Gradients", "Params", "Saved", "backward", "beside", "draw", "forward", "sinusoidal"]


class Params(NamedTuple):
    table: Float[Array, "P E"]  # P places


class Saved(NamedTuple):
    first: int
    shape: tuple[int, ...]  # of x
    params: Params


class Gradients(NamedTuple):
    x: Float[Array, "... N E"]
    params: Params


def look(x: Any, params: Any, first: int, **_: Any) -> None:
    check_sizes(0, first=first)
    if first + x.shape[-2] > len(params.table):
        raise ValueError(
            f"x: {x.shape[-2]} positions from {first} on need a table of {first + x.shape[-2]} places,"
            f" got {len(params.table)}"
        )


@op(look=look)
def forward(x: Float[Array, "... N E"], params: Params, *, first: int = 0) -> tuple[Array, Saved]:
    """Equation (1)."""
    return x + params.table[first : first + x.shape[-2]], Saved(first, x.shape, params)  # (1)


def look_back(d_y: Any, saved: Any) -> None:
    if d_y.shape != saved.shape:
        raise ValueError(f"d_y: expected shape (..., N, E) = {saved.shape}, got {d_y.shape}")


@op(look=look_back)
def backward(d_y: Float[Array, "... N E"], saved: Saved) -> Gradients:
    """Equation (2)."""
    first, _, params = saved
    d_table = np.zeros_like(params.table)
    d_table[first : first + d_y.shape[-2]] = d_y.sum(axis=tuple(range(d_y.ndim - 2)))  # (2)
    return Gradients(d_y, Params(d_table))


@op
def draw(places: int, width: int, rng: np.random.Generator, *, scale: float = 0.02, dtype: Any = np.float64) -> Params:
    """Draw a table to start from: normal numbers times ``scale``."""
    return Params((scale * rng.standard_normal((places, width))).astype(dtype))


@op
def sinusoidal(length: int, width: int, *, dtype: Any = np.float64) -> Array:
    """Equation (3): ``(length, width)``, constants to be added to ``x``."""
    check_sizes(length=length, width=width)
    pair = np.arange(width) // 2  # c
    angle = np.arange(length)[:, None] / 10000 ** (2 * pair / width)  # (length, width)
    return np.where(np.arange(width) % 2, np.cos(angle), np.sin(angle)).astype(dtype)  # (3)


def beside(x: Array, constants: Array) -> Array:
    """``[x_i, c_i]``: ``(..., N, E)`` and ``(N or more, F)`` to ``(..., N, E + F)``; ``dx`` is the first part of G."""
    constants = constants[: x.shape[-2]].astype(x.dtype, copy=False)
    return np.concatenate([x, np.broadcast_to(constants, (*x.shape[:-1], constants.shape[-1]))], axis=-1)
