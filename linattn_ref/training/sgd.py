"""Stochastic gradient descent, with momentum.

    g <- g + decay p                                         (1)
    b <- mu b + g                                            (2)  from b = 0 on
    p <- p - eta b                                           (3)  or, Nesterov's, p - eta (g + mu b)

``g`` the gradient, ``eta`` the learning rate, ``mu`` the momentum; PyTorch's form, in which ``eta`` is outside ``b``.
A step works in place. With Nesterov's momentum the step looks one momentum step ahead.

>>> p, state = np.array([1.0]), init_state(np.array([1.0]))
>>> for _ in range(2):
...     state = step(p, np.array([1.0]), state, learning_rate=0.1, momentum=0.5)
>>> p.round(3)
array([0.75])

References
----------
Sutskever, Martens, Dahl and Hinton (2013), "On the importance of initialization and momentum in deep learning",
section 2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np  # noqa: F401  (for the example)

from linattn_ref.op import op
from linattn_ref.training.checks import check_moved, check_rate, check_trees
from linattn_ref.training.parameters import together, zeros_like

__all__ = ["State", "init_state", "step"]


class State(NamedTuple):
    momentum: Any  # b, as the parameters: an array, or a tree of arrays
    steps: int


def init_state(params: Any) -> State:
    """Return the state before the first step."""
    return State(zeros_like(params), 0)


def look(params: Any, grads: Any, state: Any, nesterov: Any, **rates: Any) -> None:
    check_trees(params, grads, state.momentum)
    check_rate(**rates)
    if nesterov and rates["momentum"] == 0:
        raise ValueError("nesterov: expected a momentum above 0, got 0")


@op(look=look, values=check_moved)
def step(
    params: Any,
    grads: Any,
    state: State,
    *,
    learning_rate: float = 1e-3,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> State:
    """Equations (1)-(3), in place; return the state after the step.

    Parameters
    ----------
    params, grads : ndarray, or NamedTuple of arrays and of such NamedTuples
        Parameters, and their gradients in the same structure.
    state : State
        From :func:`init_state` or the last step.
    learning_rate, momentum : float
        ``eta`` and ``mu``.
    weight_decay : float
        Times ``p``, added to the gradient.
    nesterov : bool
        Nesterov's momentum.
    """
    for p, g, b in together(params, grads, state.momentum):
        g = g + weight_decay * p  # (1)
        b[...] = momentum * b + g  # (2)
        p -= learning_rate * (g + momentum * b if nesterov else b)  # (3)
    return State(state.momentum, state.steps + 1)
