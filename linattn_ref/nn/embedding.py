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

from linattn_ref.op import Array, Float, Int, Integers, op

__all__ = ["Gradients", "Params", "Saved", "backward", "check_tokens", "draw", "forward"]


class Params(NamedTuple):
    table: Float[Array, "V E"]


class Saved(NamedTuple):
    tokens: Int[Integers, "..."]
    params: Params


class Gradients(NamedTuple):
    tokens: None
    params: Params


def check_tokens(name: str, tokens: Any, count: int) -> None:
    """Check that ``tokens`` is an array of integers from 0 to ``count - 1``."""
    if not (isinstance(tokens, np.ndarray) and tokens.dtype.kind in "iu"):
        raise TypeError(f"{name}: expected an array of integers, got {getattr(tokens, 'dtype', type(tokens).__name__)}")
    if tokens.size and not (tokens.min() >= 0 and tokens.max() < count):
        raise ValueError(f"{name}: expected numbers from 0 to {count - 1}, got {tokens.min()} to {tokens.max()}")


def check_values(tokens: Any, params: Any, **_: Any) -> None:
    check_tokens("tokens", tokens, len(params.table))


@op(values=check_values)
def forward(tokens: Int[Integers, "..."], params: Params) -> tuple[Array, Saved]:
    """Equation (1): ``(...)`` to ``(..., E)``."""
    return params.table[tokens], Saved(tokens, params)  # (1)


@op
def backward(d_y: Float[Array, "... E"], saved: Saved) -> Gradients:
    """Equation (2)."""
    d_table = np.zeros_like(saved.params.table)
    np.add.at(d_table, saved.tokens.reshape(-1), d_y.reshape(-1, d_y.shape[-1]))  # (2)
    return Gradients(None, Params(d_table))


@op
def draw(count: int, width: int, rng: np.random.Generator, *, scale: float = 0.02, dtype: Any = np.float64) -> Params:
    """Draw a table to start from: normal numbers times ``scale``, a row of ``width`` for each of ``count`` tokens."""
    return Params((scale * rng.standard_normal((count, width))).astype(dtype))
