"""A bidirectional LSTM: a network with a memory that goes through a sequence step by step, and another that comes back.

    a_t = x_t W + h_(t-1) U + b                              (1)  (4 H,), the parts i, f, g and o
    i, f, o = sigma(a^i), sigma(a^f), sigma(a^o),   g = tanh(a^g)            (2)
    c_t = f_t c_(t-1) + i_t g_t                              (3)
    h_t = o_t tanh(c_t)                                      (4)
    y_t = [h_t ahead, h_t back]                              (5)

All products in (3) and (4) are unit by unit. ``c`` is the memory: the gate ``f`` says how much of it stays, ``i`` how
much of the new ``g`` comes in, ``o`` how much is told. Both start from 0. In (5) each direction has parameters of its
own, and the one that comes back starts at the last step of its sequence, not in the padding.

The gradient, by hand: backward through time
--------------------------------------------
Let ``G_t`` be the gradient of ``h_t`` from outside. ``h_t`` acts on the step after through (1), and ``c_t`` through
(3), besides (4). So, from the last step to the first,

    dh_t = G_t + da_(t+1) U^T                                (6)
    dc_t = dh_t o_t (1 - tanh(c_t)^2) + f_(t+1) dc_(t+1)     (7)
    da^i_t = dc_t g_t i_t (1 - i_t),   da^f_t = dc_t c_(t-1) f_t (1 - f_t)
    da^g_t = dc_t i_t (1 - g_t^2),     da^o_t = dh_t tanh(c_t) o_t (1 - o_t)                     (8)

and the rest is that of an affine layer, all steps together:

    dx_t = da_t W^T,   dW = sum x_t^T da_t,   dU = sum h_(t-1)^T da_t,   db = sum da_t           (9)

Along ``c``, (7) multiplies by ``f`` alone, which can be near to 1: that is why the gradient of what came long ago does
not vanish. The plain text of (1) to (4) and (6) to (9) is `linattn_ref.kernels.reference.lstm`.

>>> params = draw(2, 3, np.random.default_rng(0))
>>> y, saved = forward(np.ones((1, 5, 2)), params)
>>> y.shape, backward(np.ones((1, 5, 6)), saved).params.ahead.u.shape
((1, 5, 6), (3, 12))

References
----------
Hochreiter and Schmidhuber (1997), "Long short-term memory"; the gate ``f`` is of Gers, Schmidhuber and Cummins (2000),
"Learning to forget". Graves and Schmidhuber (2005), "Framewise phoneme classification with bidirectional LSTM".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.attention.arguments import Array, check_array, check_shape
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.attention.rooms import check_kernels, kernel_of, name_of_room
from linattn_ref.kernels import reference
from linattn_ref.nn.buffers import Work, add_into, fresh
from linattn_ref.nn.lengths import Lengths, check_lengths, lengths_or_all

__all__ = ["Direction", "Gradients", "Params", "Saved", "backward", "draw", "forward"]


@documented
class Direction(NamedTuple):
    """What is learned in one direction; the columns are those of i, then f, g and o."""

    w: Array  # (E, 4 H)
    u: Array  # (H, 4 H)
    b: Array  # (4 H,), the sum of PyTorch's two


@documented
class Params(NamedTuple):
    """What is learned."""

    ahead: Direction
    back: Direction


@documented
class Steps(NamedTuple):
    """What the backward pass needs of one direction, in its own order of steps."""

    x: Array  # (T, B, E)
    h: Array  # (T + 1, B, H), from the 0 before the first step
    c: Array  # (T + 1, B, H)
    gates: Array  # (T, B, 4 H), i, f, g and o


@documented
class Saved(NamedTuple):
    """What the backward pass needs."""

    ahead: Steps
    back: Steps
    lengths: NDArray[np.intp]  # (B,)
    params: Params
    kernels: Any  # the name of the room


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    x: Array  # (B, T, E)
    params: Params


def check_forward(
    x: Array, params: Params, *, lengths: Lengths | None = None, kernels: Any = reference, **_: Any
) -> None:
    """Arguments of :func:`forward`."""
    check_array("x", x, ndim=3)
    if x.ndim != 3:
        raise ValueError(f"x: expected shape (B, T, E), got {x.shape}")
    hidden = len(params.ahead.u)
    for name, direction in zip(Params._fields, params, strict=True):
        for field, shape, letters in (
            ("w", (x.shape[-1], 4 * hidden), "(E, 4 H)"),
            ("u", (hidden, 4 * hidden), "(H, 4 H)"),
            ("b", (4 * hidden,), "(4 H,)"),
        ):
            check_array(f"params.{name}.{field}", getattr(direction, field), ndim=1, dtype=x.dtype)
            check_shape(f"params.{name}.{field}", getattr(direction, field), shape, letters)
    check_lengths("lengths", lengths, x.shape[:1], x.shape[1])
    check_kernels(kernels, "lstm")


@door(check_forward)
def forward(
    x: Array, params: Params, *, lengths: Lengths | None = None, kernels: Any = reference, work: Work = fresh
) -> tuple[Array, Saved]:
    """Equations (1)-(5): ``(B, T, E) -> (B, T, 2 H)``.

    Parameters
    ----------
    x, params, kernels, work
        See `linattn_ref.nn`.
    lengths : ndarray of int ``(B,)``, optional
        How many steps each sequence has; the rows behind them are padding, of which output and gradient are 0.
    """
    n, steps = lengths_or_all(lengths, x.shape[:1], x.shape[1]), []
    y = work((*x.shape[:2], 2 * len(params.ahead.u)), x.dtype)
    for direction, half, backwards in zip(params, np.split(y, 2, axis=-1), (False, True), strict=True):
        rows = _ordered(x, n, backwards, work)  # (T, B, E)
        h, c, gates = kernels.lstm.forward(rows, *direction, work=work)  # (1)-(4)
        steps.append(Steps(rows, h, c, gates))
        _in_place(half, h[1:], n, backwards)  # (5)
    return y, Saved(steps[0], steps[1], n, params, name_of_room(kernels))


def check_backward(d_y: Array, saved: Saved, **_: Any) -> None:
    """Shape and dtype of :func:`backward`."""
    steps, batch, hidden = saved.ahead.h.shape
    check_array("d_y", d_y, dtype=saved.ahead.h.dtype)
    check_shape("d_y", d_y, (batch, steps - 1, 2 * hidden), "of y")


@door(check_backward)
def backward(d_y: Array, saved: Saved, *, into: Params | None = None, work: Work = fresh) -> Gradients:
    """Equations (6)-(9), in both directions."""
    kernel, d_x, d_params = kernel_of(saved.kernels, "lstm"), [], []
    for half, steps, direction, backwards in zip(
        np.split(d_y, 2, axis=-1), (saved.ahead, saved.back), saved.params, (False, True), strict=True
    ):
        d_h = _ordered(half, saved.lengths, backwards, work)  # of (5)  (T, B, H)
        x, h, c, gates = steps
        d_rows, *d_direction = kernel.backward(d_h, x, direction.w, direction.u, h, c, gates, work=work)  # (6)-(9)
        d_x.append(work((*d_y.shape[:2], x.shape[-1]), x.dtype))
        _in_place(d_x[-1], d_rows, saved.lengths, backwards)  # (B, T, E)
        d_params.append(Direction(*d_direction))
    d_x[0] += d_x[1]
    return Gradients(d_x[0], add_into(into, Params(*d_params)))


@plain_numbers
def draw(width: int, hidden: int, rng: np.random.Generator, *, dtype: Any = np.float64) -> Params:
    """Parameters to start from: uniform numbers, none larger than ``1 / sqrt(H)``, as PyTorch draws them.

    Parameters
    ----------
    width, hidden : int
        ``E`` and ``H``.
    rng : numpy.random.Generator
    dtype
        float32 or float64.
    """
    limit, shapes = 1 / np.sqrt(hidden), ((width, 4 * hidden), (hidden, 4 * hidden), (4 * hidden,))
    return Params(*(Direction(*(rng.uniform(-limit, limit, s).astype(dtype) for s in shapes)) for _ in range(2)))


# --- The order of steps ---------------------------------------------------------------------------------------------


def _ordered(x: Array, lengths: NDArray[np.intp], backwards: bool, work: Work) -> Array:
    """``(B, T, E)`` step by step, ``(T, B, E)``, each sequence from its first or its last step on; padding is 0."""
    rows = work((x.shape[1], x.shape[0], x.shape[2]), x.dtype)
    for b, n in enumerate(lengths):
        rows[:n, b] = x[b, :n][:: -1 if backwards else 1]
        rows[n:, b] = 0
    return rows


def _in_place(x: Array, rows: Array, lengths: NDArray[np.intp], backwards: bool) -> None:
    """The way back, ``(T, B, E)`` to ``x (B, T, E)``; padding is 0."""
    for b, n in enumerate(lengths):
        x[b, :n] = rows[:n, b][:: -1 if backwards else 1]
        x[b, n:] = 0
