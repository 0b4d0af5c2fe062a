"""Adam (Kingma and Ba 2015), and with decoupled weight decay AdamW (Loshchilov and Hutter 2019).

    m_t = beta_1 m_{t-1} + (1 - beta_1) g_t                  (1)  mean of the gradient
    v_t = beta_2 v_{t-1} + (1 - beta_2) g_t^2                (2)  of its square
    c_1 = 1 - beta_1^t,   c_2 = 1 - beta_2^t                 (3)  means that start from 0 are too small by these
    p_t = p_{t-1} - eta (m_t / c_1) / (sqrt(v_t / c_2) + eps)                 (4)

``weight_decay`` adds its share of ``p`` to the gradient, or with ``decoupled=True`` takes it off ``p`` directly:
``p <- (1 - eta decay) p`` before (4). All of it in one pass over the memory; in plain text, that is
`linattn_ref.kernels.reference.adam`.

>>> p, state = np.array([1.0]), init_state(np.array([1.0]))
>>> for _ in range(2):
...     state = step(p, np.array([5.0]), state, learning_rate=0.1)
>>> p.round(3)  # whatever the gradient's size, a step is of the learning rate's
array([0.8])

References
----------
Kingma and Ba (2015), "Adam: a method for stochastic optimization", Algorithm 1.
Loshchilov and Hutter (2019), "Decoupled weight decay regularization", Algorithm 2.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array
from linattn_ref.attention.plain_numbers import plain_numbers
from linattn_ref.attention.rooms import check_kernels
from linattn_ref.kernels import reference
from linattn_ref.training.checks import check_betas, check_pair, check_rate

__all__ = ["State", "check_step", "decays", "init_state", "step"]


class State(NamedTuple):
    """What is carried from step to step; its buffers are reused."""

    m: Array  # (parameters,)
    v: Array  # (parameters,)
    steps: int


def init_state(params: Array) -> State:
    """The state before the first step."""
    return State(np.zeros_like(params), np.zeros_like(params), 0)


@plain_numbers
def step(
    params: Array,
    grads: Array,
    state: State,
    *,
    learning_rate: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    kernels: Any = reference,
) -> State:
    """Move ``params (parameters,)`` in place, equations (1)-(4).

    Parameters
    ----------
    params, grads : ndarray ``(parameters,)``, or of any shape
    state : State
        From :func:`init_state` or the last step. It is spent.
    learning_rate, eps : float
        ``eta`` and ``eps``.
    betas : (float, float)
        ``beta_1`` and ``beta_2``.
    weight_decay : float
    decoupled : bool
        AdamW, whose usual ``weight_decay`` is 0.01.
    kernels
        The room of the loop: `linattn_ref.kernels.reference`, its plain text, or ``jit``.
    """
    check_step(params, grads, state, learning_rate, betas, eps, weight_decay, kernels)
    m, v, steps = state._replace(steps=state.steps + 1)
    c_1, c_2 = (1 - beta**steps for beta in betas)  # (3)
    size, root = learning_rate / c_1, 1 / math.sqrt(c_2)  # (4)
    kernels.adam.step(
        params,
        grads,
        m,
        v,
        betas=betas,
        size=size,
        root=root,
        eps=eps,
        **decays(learning_rate, weight_decay, decoupled),
    )
    return State(m, v, steps)


@plain_numbers
def decays(learning_rate: float, weight_decay: float, decoupled: bool) -> dict[str, float]:
    """What is added to the gradient, and what is kept of the weights, times these."""
    return {"keep": 1 - learning_rate * weight_decay} if decoupled else {"decay": weight_decay}


def check_step(
    params: Array,
    grads: Array,
    state: State,
    learning_rate: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    kernels: Any,
) -> None:
    """What :func:`step` is given, and that of RAdam."""
    check_pair(params, grads, state.m)
    check_rate(learning_rate=learning_rate, eps=eps, weight_decay=weight_decay)
    check_betas(betas)
    check_kernels(kernels, "adam")
