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
    *gradients, d_first = delta_rule.backward.page(d_out, saved, d_state=None if d_state is None else State(d_state))
    return *gradients, d_first.s


def step(q, k, v, erase, log_gate, s):
    row = [None if x is None else x[..., None, :] for x in (q, k, v, erase)]
    gate = None if log_gate is None else log_gate[..., None, :] if log_gate.ndim == q.ndim else log_gate[..., None]
    out, s[...], _ = forward(*row, gate, s)
    return out[..., 0, :]


def _forward(q, k, v, erase, log_gate, state):
    state = np.zeros((*v.shape[:-2], k.shape[-1], v.shape[-1]), v.dtype) if state is None else state
    return delta_rule.forward.page(q, k, v, erase, log_gate, state=State(state))
