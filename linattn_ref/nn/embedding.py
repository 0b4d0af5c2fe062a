"""The embedding: a row of a table for each token.

    y_i = T[t_i]                                             (1)
    dT[t] = sum of G_i over all i with t_i = t               (2)

with ``G`` the gradient of a loss with respect to ``y``. Tokens are integers and have no gradient.

>>> y, saved = forward(np.array([1, 1, 0]), Params(np.array([[10.0], [20.0]])))
>>> y.ravel(), backward(np.ones((3, 1)), saved).params.table.ravel()
(array([20., 20., 10.]), array([1., 2.]))
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.attention.arguments import Array, check_array, check_shape
from linattn_ref.attention.door import door
from linattn_ref.attention.fields import documented
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.nn.buffers import Work, fresh

__all__ = ["Gradients", "Params", "Saved", "backward", "check_tokens", "draw", "forward"]

Tokens = NDArray[np.integer[Any]]


@documented
class Params(NamedTuple):
    """What is learned."""

    table: Array  # (tokens, E)


@documented
class Saved(NamedTuple):
    """What the backward pass needs."""

    tokens: Tokens  # (...)
    params: Params


@documented
class Gradients(NamedTuple):
    """Gradients of the inputs of ``forward``."""

    tokens: None
    params: Params


def check_tokens(name: str, tokens: Tokens, count: int) -> None:
    """``tokens`` is an array of integers from 0 to ``count - 1``."""
    if not (isinstance(tokens, np.ndarray) and tokens.dtype.kind in "iu"):
        raise TypeError(f"{name}: expected an array of integers, got {getattr(tokens, 'dtype', type(tokens).__name__)}")
    if tokens.size and not (tokens.min() >= 0 and tokens.max() < count):
        raise ValueError(f"{name}: expected numbers from 0 to {count - 1}, got {tokens.min()} to {tokens.max()}")


def check_forward(tokens: Tokens, params: Params, **_: Any) -> None:
    """Arguments of :func:`forward`."""
    check_array("params.table", params.table)
    check_shape("params.table", params.table, params.table.shape[-2:], "(tokens, E)")
    check_tokens("tokens", tokens, len(params.table))


@door(check_forward)
def forward(tokens: Tokens, params: Params, *, work: Work = fresh) -> tuple[Array, Saved]:
    """Equation (1): ``(...) -> (..., E)``."""
    table = params.table
    y = np.take(table, tokens, axis=0, out=work((*tokens.shape, table.shape[1]), table.dtype), mode="clip")  # (1)
    return y, Saved(tokens, params)


def check_backward(d_y: Array, saved: Saved, **_: Any) -> None:
    """Shape and dtype of :func:`backward`."""
    table = saved.params.table
    check_array("d_y", d_y, ndim=1, dtype=table.dtype)
    check_shape("d_y", d_y, (*saved.tokens.shape, table.shape[1]), "of y")


@door(check_backward)
def backward(d_y: Array, saved: Saved, *, into: Params | None = None, work: Work = fresh) -> Gradients:
    """Equation (2)."""
    table = saved.params.table
    if into is None:
        into = Params(work(table.shape, table.dtype))
        into.table[...] = 0
    np.add.at(into.table, saved.tokens.reshape(-1), d_y.reshape(-1, d_y.shape[-1]))  # (2)
    return Gradients(None, into)


@plain_numbers
def draw(count: int, width: int, rng: np.random.Generator, *, scale: float = 0.02, dtype: Any = np.float64) -> Params:
    """Parameters to start from: normal numbers times ``scale``, a row of ``width`` for each of ``count`` tokens."""
    return Params((scale * rng.standard_normal((count, width))).astype(dtype))
