"""`linattn_ref.training.adam`, each array once over the memory."""

import math

from linattn_ref.kernels.jit.loops.layers import adam as loop
from linattn_ref.training.adam import State, decay_of
from linattn_ref.training.parameters import together

__all__ = ["move", "step"]


def step(params, grads, state, *, learning_rate=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=None, decoupled=False):
    c_1, c_2 = (1 - beta ** (state.steps + 1) for beta in betas)  # (4)
    size, root = learning_rate / c_1, 1 / math.sqrt(c_2)  # (5)
    decay = decay_of(weight_decay, decoupled)
    return move(params, grads, state, betas, size, root, eps, learning_rate, decay, decoupled)


def move(params, grads, state, betas, size, root, eps, learning_rate, weight_decay=0.0, decoupled=False):
    """``p - size m / (root sqrt(v) + eps)``, with ``m`` and ``v`` brought up to date and weights that decay by (1)."""
    decay = {"keep": 1 - learning_rate * weight_decay} if decoupled else {"decay": weight_decay}
    for p, g, m, v in together(params, grads, state.m, state.v):
        loop.step(p, g, m, v, betas=betas, size=size, root=root, eps=eps, **decay)
    return State(state.m, state.v, state.steps + 1)
