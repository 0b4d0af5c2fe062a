"""`linattn_ref.training.radam`, by the loop of Adam."""

import math
from typing import Any

from linattn_ref.kernels.jit.adam import decays
from linattn_ref.kernels.jit.loops import adam as loop
from linattn_ref.training.adam import State
from linattn_ref.training.parameters import together
from linattn_ref.training.radam import rectification

__all__ = ["step"]


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
    (c_1, c_2), r = (1 - beta**t for beta in betas), rectification(t, betas[1])
    size, root = learning_rate / c_1, 1.0
    if r is None:
        root, eps = 0.0, 1.0  # (4), without v
    else:
        size *= r * math.sqrt(c_2)  # (4)
    decay = decays(learning_rate, weight_decay, decoupled)
    for p, g, m, v in together(params, grads, state.m, state.v):
        loop.step(p, g, m, v, betas=betas, size=size, root=root, eps=eps, **decay)
    return State(state.m, state.v, t)
