"""Adam (Kingma and Ba 2015), and with decoupled weight decay AdamW (Loshchilov and Hutter 2019).

    g <- g + decay p                                         (1)  or, decoupled, p <- (1 - eta decay) p
    m <- beta_1 m + (1 - beta_1) g                           (2)  mean of the gradient
    v <- beta_2 v + (1 - beta_2) g^2                         (3)  mean of its square
    c_1 = 1 - beta_1^t,   c_2 = 1 - beta_2^t                 (4)  means that start from 0 are too small by these factors
    p <- p - eta (m / c_1) / (sqrt(v / c_2) + eps)           (5)

A step works in place, in the arrays of the parameters and in those of its state.

>>> p, state = np.array([1.0]), init_state(np.array([1.0]))
>>> for _ in range(2):
...     state = step(p, np.array([5.0]), state, learning_rate=0.1)
>>> p.round(3)  # as long as a constant gradient is well above eps, every step is as long as the learning rate
array([0.8])

References
----------
Kingma and Ba (2015), "Adam: a method for stochastic optimization", Algorithm 1.
Loshchilov and Hutter (2019), "Decoupled weight decay regularization", Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.op import Array, op
from linattn_ref.training.checks import check_betas, check_moved, check_rate, check_trees
from linattn_ref.training.parameters import together, zeros_like

__all__ = ["State", "decay_of", "init_state", "look", "moments", "step"]


class State(NamedTuple):
    m: Any  # as the parameters: an array, or a tree of arrays
    v: Any
    steps: int


def init_state(params: Any) -> State:
    """Return the state before the first step."""
    return State(zeros_like(params), zeros_like(params), 0)


def look(params: Any, grads: Any, state: Any, betas: Any, weight_decay: Any, **rates: Any) -> None:
    check_trees(params, grads, state.m, state.v)
    check_rate(learning_rate=rates["learning_rate"], eps=rates["eps"], weight_decay=decay_of(weight_decay, False))
    check_betas(betas)


@op(look=look, values=check_moved)
def step(
    params: Any,
    grads: Any,
    state: State,
    *,
    learning_rate: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float | None = None,
    decoupled: bool = False,
) -> State:
    """Equations (1)-(5), in place; return the state after the step.

    Parameters
    ----------
    params, grads : ndarray, or NamedTuple of arrays and of such NamedTuples
        Parameters, and their gradients in the same structure.
    state : State
        From :func:`init_state` or the last step.
    learning_rate, eps : float
        ``eta`` and ``eps``.
    betas : (float, float)
        ``beta_1`` and ``beta_2``.
    weight_decay : float, optional
        Unless given, 0; of AdamW 0.01, as in PyTorch.
    decoupled : bool
        AdamW.
    """
    t, weight_decay = state.steps + 1, decay_of(weight_decay, decoupled)
    c_1, c_2 = 1 - betas[0] ** t, 1 - betas[1] ** t  # (4)
    for p, m, v in moments(params, grads, state, learning_rate, betas, weight_decay, decoupled):  # (1)-(3)
        p -= learning_rate * (m / c_1) / (np.sqrt(v / c_2) + eps)  # (5)
    return State(state.m, state.v, t)


def decay_of(weight_decay: float | None, decoupled: bool) -> float:
    """Return the decay of Adam, or of AdamW, where None is given."""
    return weight_decay if weight_decay is not None else 0.01 if decoupled else 0.0


def moments(
    params: Any,
    grads: Any,
    state: State,
    learning_rate: float,
    betas: tuple[float, float],
    weight_decay: float,
    decoupled: bool,
) -> Iterator[tuple[Array, Array, Array]]:
    """Equations (1)-(3) for one array after the other: ``p``, ``m`` and ``v``."""
    beta_1, beta_2 = betas
    for p, g, m, v in together(params, grads, state.m, state.v):
        if decoupled:
            p *= 1 - learning_rate * weight_decay  # (1)
        else:
            g = g + weight_decay * p  # (1)
        m[...] = beta_1 * m + (1 - beta_1) * g  # (2)
        v[...] = beta_2 * v + (1 - beta_2) * g**2  # (3)
        yield p, m, v
