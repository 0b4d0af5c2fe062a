"""The page `delta_rule` with the arguments and results of a backend's loop, which is held against it."""

import numpy as np

from linattn_ref.attention import delta_rule
from linattn_ref.attention.delta_rule import State

__all__ = ["backward", "forward", "step"]


def forward(q, k, v, erase, log_gate, state):
    out, saved = _forward(q, k, v, erase, log_gate, state)
    return out, saved.state.s, saved.u


def backward(d_out, d_state, q, k, v, erase, log_gate, state, u):
    saved = _forward(q, k, v, erase, log_gate, state)[1]
    *gradients, d_first = delta_rule.backward(d_out, saved, d_state=None if d_state is None else State(d_state))
    return *gradients, d_first.s


def step(q, k, v, erase, log_gate, s):
    out, after = delta_rule.step(q, k, v, State(s), erase, log_gate)
    s[...] = after.s
    return out


def _forward(q, k, v, erase, log_gate, state):
    state = np.zeros((*v.shape[:-2], k.shape[-1], v.shape[-1]), v.dtype) if state is None else state
    return delta_rule.forward(q, k, v, erase, log_gate, state=State(state))
