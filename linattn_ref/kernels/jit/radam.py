"""`linattn_ref.training.radam`, by the loop of Adam."""

import math

from linattn_ref.kernels.jit.adam import move
from linattn_ref.training.radam import rectification

__all__ = ["step"]


def step(params, grads, state, *, learning_rate=1e-3, betas=(0.9, 0.999), eps=1e-8, **decay):
    t = state.steps + 1
    (c_1, c_2), r = (1 - beta**t for beta in betas), rectification(t, betas[1])
    size, root = learning_rate / c_1, 1.0
    if r is None:
        root, eps = 0.0, 1.0  # (4), without v
    else:
        size *= r * math.sqrt(c_2)  # (4)
    return move(params, grads, state, betas, size, root, eps, learning_rate, **decay)
