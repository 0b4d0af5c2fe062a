"""RAdam (Liu et al. 2020): Adam that warms up by itself.

At first ``v``, a mean of few squares, is nearly as random as one of them, and to divide by its root makes steps of any
size. The mean over ``t`` steps varies as much as the mean of ``rho_t`` independent squares:

    rho_inf = 2 / (1 - beta_2) - 1                           (1)
    rho_t = rho_inf - 2 t beta_2^t / (1 - beta_2^t)          (2)

The larger ``rho_t``, the more ``v`` can be trusted, and each step is multiplied by

    r_t = sqrt((rho_t - 4)(rho_t - 2) rho_inf / ((rho_inf - 4)(rho_inf - 2) rho_t))          (3)

Up to ``rho_t = 4`` this is not defined, and steps are those of momentum alone; here, as in the authors' code and
PyTorch, up to 5:

    p_t = p_{t-1} - eta m_t / c_1 * (r_t sqrt(c_2) / (sqrt(v_t) + eps)   if rho_t > 5, else 1)      (4)

``m``, ``v``, ``c_1`` and ``c_2`` are Adam's, `linattn_ref.training.adam` (1)-(4). As in PyTorch, ``eps`` is added
before the correction by ``c_2``. A step works in place.

>>> p, state = np.array([1.0]), init_state(np.array([1.0]))
>>> for _ in range(6):
...     state = step(p, np.array([1.0]), state, learning_rate=0.1)
>>> p.round(3)  # five steps of momentum, and the sixth, of which little is trusted
array([0.497])

References
----------
Liu et al. (2020), "On the variance of the adaptive learning rate and beyond", section 4, Algorithm 2 (there it
is 4).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from linattn_ref.op import op
from linattn_ref.op.options import check_sizes, is_number
from linattn_ref.training.adam import State, init_state, look, moments
from linattn_ref.training.checks import check_moved, check_rate

__all__ = ["State", "init_state", "rectification", "step"]


def look_rates(weight_decay: Any, **others: Any) -> None:
    check_rate(weight_decay=weight_decay)
    look(weight_decay=weight_decay, **others)


@op(look=look_rates, values=check_moved)
def step(
    params: Any,
    grads: Any,
    state: State,
    *,
    learning_rate: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
) -> State:
    """Equation (4), in place; arguments as in `adam.step`, but weights decay only by what is given."""
    t = state.steps + 1
    c_1, c_2, r = 1 - betas[0] ** t, 1 - betas[1] ** t, rectification(t, betas[1])
    for p, m, v in moments(params, grads, state, learning_rate, betas, weight_decay, decoupled):
        trusted = 1 if r is None else r * math.sqrt(c_2) / (np.sqrt(v) + eps)  # (4)
        p -= learning_rate * (m / c_1) * trusted  # (4)
    return State(state.m, state.v, t)


def look_rectification(t: Any, beta_2: Any) -> None:
    check_sizes(t=t)
    if not (is_number(beta_2) and 0 <= beta_2 < 1):
        raise ValueError(f"beta_2: expected a number of at least 0 and below 1, got {beta_2!r}")


@op(look=look_rectification)
def rectification(t: int, beta_2: float) -> float | None:
    """Return ``r_t`` of (3); None while nothing is known."""
    rho_inf = 2 / (1 - beta_2) - 1  # (1)
    rho = rho_inf - 2 * t * beta_2**t / (1 - beta_2**t)  # (2)
    if rho <= 5:
        return None
    return math.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))  # (3)
