"""Stochastic gradient descent, with momentum.

    b_t = mu b_{t-1} + g_t,   b_1 = g_1                      (1)
    p_t = p_{t-1} - eta b_t                                  (2)

``g`` the gradient, ``eta`` the learning rate, ``mu`` the momentum; PyTorch's form, in which ``eta`` is outside ``b``.

>>> p, state = np.array([1.0]), init_state(np.array([1.0]))
>>> for _ in range(2):
...     state = step(p, np.array([1.0]), state, learning_rate=0.1, momentum=0.5)
>>> p.round(3)
array([0.75])
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.training.checks import check_pair, check_rate

__all__ = ["State", "init_state", "step"]


class State(NamedTuple):
    """What is carried from step to step; its buffers are reused."""

    momentum: Array  # (parameters,), b
    steps: int


def init_state(params: Array) -> State:
    """The state before the first step."""
    return State(np.zeros_like(params), 0)


@plain_numbers
def step(
    params: Array,
    grads: Array,
    state: State,
    *,
    learning_rate: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> State:
    """Move ``params (parameters,)`` in place.

    Parameters
    ----------
    params, grads : ndarray ``(parameters,)``, or of any shape
    state : State
        From :func:`init_state` or the last step. It is spent.
    learning_rate, momentum : float
        ``eta`` and ``mu``.
    weight_decay : float
        Times ``p``, added to the gradient.
    """
    check_pair(params, grads, state.momentum)
    check_rate(learning_rate=learning_rate, momentum=momentum, weight_decay=weight_decay)
    g = grads + weight_decay * params if weight_decay else grads
    b = state.momentum
    b *= momentum if state.steps else 0
    b += g  # (1)
    params -= learning_rate * b  # (2)
    return State(b, state.steps + 1)
