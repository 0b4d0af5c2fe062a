"""`linattn_ref.attention.delta_rule`; the loop is ``loops/delta/delta_product.py``."""

from functools import partial

from linattn_ref.attention.delta_rule import State
from linattn_ref.kernels.common import delta_rule as common
from linattn_ref.kernels.cuda.loops.delta import delta_product as loop

__all__ = ["Saved", "backward", "forward", "step"]


class Saved(common.Saved):
    """What the backward pass needs."""


forward = partial(common.forward, loop, Saved)
backward = partial(common.backward, loop)


def step(q_t, k_t, v_t, state, erase_t=None, log_gate_t=None, *, overwrite_state=False):
    s = state.s if overwrite_state else state.s.copy()
    return loop.step(q_t, k_t, v_t, erase_t, log_gate_t, s), State(s)
