"""A bidirectional LSTM: one reads a sequence forward, another reads it backward.

    y_t = [h_t ahead, h_t back]                              (1)

Each direction is `linattn_ref.nn.lstm_steps` with parameters of its own. The one that comes back starts at the last
step of its sequence, not in the padding. In the gradient, the two halves of (1) go their own ways, and meet in ``x``:

    dx_t = dx_t of the one ahead + dx_t of the one back      (2)

>>> params = draw(2, 3, np.random.default_rng(0))
>>> y, saved = forward(np.ones((1, 5, 2)), params)
>>> y.shape, backward(np.ones((1, 5, 6)), saved).params.ahead.u.shape
((1, 5, 6), (3, 12))

References
----------
Graves and Schmidhuber (2005), "Framewise phoneme classification with bidirectional LSTM and other neural network
architectures".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.nn import lstm_steps
from linattn_ref.nn.lengths import Lengths, check_lengths, lengths_or_all
from linattn_ref.nn.lstm_steps import Params as Direction
from linattn_ref.op import Array, Float, Int, Of, op

__all__ = ["Direction", "Gradients", "Params", "Saved", "backward", "draw", "forward"]


class Params(NamedTuple):
    ahead: Of[Direction, "E K H"]  # K = 4 H
    back: Of[Direction, "E K H"]


class Saved(NamedTuple):
    ahead: lstm_steps.Saved
    back: lstm_steps.Saved
    lengths: NDArray[np.intp]  # (B,)


class Gradients(NamedTuple):
    x: Float[Array, "B T E"]
    params: Params
    h0: Float[Array, "2 B H"] | None = None  # where forward was given one
    c0: Float[Array, "2 B H"] | None = None


def look(params: Any, **_: Any) -> None:
    lstm_steps.look(params.ahead, "params.ahead")


def check_values(x: Any, lengths: Any = None, **_: Any) -> None:
    check_lengths("lengths", lengths, x.shape[1])


@op(look=look, values=check_values)
def forward(
    x: Float[Array, "B T E"],
    params: Params,
    h0: Float[Array, "2 B H"] | None = None,
    c0: Float[Array, "2 B H"] | None = None,
    *,
    lengths: Int[Lengths, "B"] | None = None,
) -> tuple[Array, Saved]:
    """Equation (1): ``(B, T, E)`` to ``(B, T, 2 H)``.

    Parameters
    ----------
    x : ndarray ``(B, T, E)``
    params : Params
    h0, c0 : ndarray ``(2, B, H)``, optional
        What each direction starts from, ahead and back; 0 unless given.
    lengths : ndarray of int ``(B,)``, optional
        How many steps each sequence has; the rows behind them are padding, of which output and gradient are 0.
    """
    n = lengths_or_all(lengths, x.shape[:1], x.shape[1])
    h, c = ((None, None) if start is None else start for start in (h0, c0))  # ahead and back
    ahead, saved_ahead = lstm_steps.forward(by_steps(x, n), params.ahead, h[0], c[0])
    back, saved_back = lstm_steps.forward(by_steps(x, n, backwards=True), params.back, h[1], c[1])
    y = np.concatenate([by_sequences(ahead, n), by_sequences(back, n, backwards=True)], axis=-1)  # (1)
    return y, Saved(saved_ahead, saved_back, n)


def look_back(d_y: Any, saved: Any) -> None:
    if d_y.shape[-1] != 2 * (h := saved.ahead.h.shape[-1]):
        raise ValueError(f"d_y: expected shape (B, T, 2 H) = {(*d_y.shape[:-1], 2 * h)}, got {d_y.shape}")


@op(look=look_back)
def backward(d_y: Float[Array, "B T Y"], saved: Saved) -> Gradients:
    """Back through (1), then (2)."""
    n, (d_ahead, d_back) = saved.lengths, np.split(d_y, 2, axis=-1)  # of (1)
    ahead = lstm_steps.backward(by_steps(d_ahead, n), saved.ahead)
    back = lstm_steps.backward(by_steps(d_back, n, backwards=True), saved.back)
    d_x = by_sequences(ahead.x, n) + by_sequences(back.x, n, backwards=True)  # (2)
    d_h0, d_c0 = both(ahead.h0, back.h0), both(ahead.c0, back.c0)
    return Gradients(d_x, Params(ahead.params, back.params), d_h0, d_c0)


def both(ahead: Array | None, back: Array | None) -> Array | None:
    """``(2, B, H)`` of two ``(B, H)``."""
    return None if ahead is None or back is None else np.stack([ahead, back])


@op
def draw(width: int, hidden: int, rng: np.random.Generator, *, dtype: Any = np.float64) -> Params:
    """Draw parameters to start from: uniform numbers, none larger than ``1 / sqrt(H)``.

    This is how PyTorch draws each of its arrays; ``b`` is drawn as one of its two biases.

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


def by_steps(x: Array, lengths: NDArray[np.intp], *, backwards: bool = False) -> Array:
    """``(B, T, E)`` as ``(T, B, E)``, each sequence from its first or its last step on; padding is 0."""
    rows = np.zeros((x.shape[1], x.shape[0], x.shape[2]), x.dtype)
    for b, n in enumerate(lengths):
        rows[:n, b] = x[b, :n][:: -1 if backwards else 1]
    return rows


def by_sequences(rows: Array, lengths: NDArray[np.intp], *, backwards: bool = False) -> Array:
    """The way back, ``(T, B, E)`` as ``(B, T, E)``; padding is 0."""
    return by_steps(rows.swapaxes(0, 1), lengths, backwards=backwards).swapaxes(0, 1)
