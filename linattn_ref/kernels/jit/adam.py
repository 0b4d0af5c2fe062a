"""`linattn_ref.training.adam`, each array once over the memory."""

import math
from typing import Any

from linattn_ref.kernels.jit.loops import adam as loop
from linattn_ref.training.adam import State
from linattn_ref.training.parameters import together

__all__ = ["decays", "step"]


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
    t = state.steps + 1
    c_1, c_2 = (1 - beta**t for beta in betas)  # (4)
    size, root = learning_rate / c_1, 1 / math.sqrt(c_2)  # (5)
    decay = decays(learning_rate, weight_decay, decoupled)
    for p, g, m, v in together(params, grads, state.m, state.v):
        loop.step(p, g, m, v, betas=betas, size=size, root=root, eps=eps, **decay)
    return State(state.m, state.v, t)


def decays(learning_rate: float, weight_decay: float, decoupled: bool) -> dict[str, float]:
    """What is added to the gradient, and what is kept of the weights, times these: (1)."""
    return {"keep": 1 - learning_rate * weight_decay} if decoupled else {"decay": weight_decay}
