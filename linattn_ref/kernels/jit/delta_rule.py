"""`linattn_ref.attention.delta_rule`; the loop is ``loops/delta/delta_product.py``."""

from functools import partial

import numpy as np

from linattn_ref.attention import delta
from linattn_ref.attention.delta_rule import State
from linattn_ref.attention.parts.shared_heads import of_keys
from linattn_ref.kernels.common import delta_rule as common
from linattn_ref.kernels.jit.loops.delta import delta_product as loop
from linattn_ref.kernels.jit.loops.heads import zeros_aligned

__all__ = ["Saved", "backward", "forward", "init_state", "step"]


class Saved(common.Saved):
    """What the backward pass needs."""


forward = partial(common.forward, loop, Saved)
backward = partial(common.backward, loop)


def init_state(leading, key_width, value_width, *, dtype=np.float64, groups=1):
    return State(zeros_aligned((*of_keys(leading, groups), key_width, value_width), dtype))


def step(q_t, k_t, v_t, state, erase_t=None, log_gate_t=None, *, overwrite_state=False, **of_delta):
    """One token; ``beta``, ``scale`` and ``normalise`` are those of `delta` and `gated_linear`."""
    after = state.s if overwrite_state else np.empty(state.s.shape, state.s.dtype)
    out = loop.step(q_t, k_t, v_t, erase_t, log_gate_t, state.s, after, **of_delta)
    if out is None:
        delta.check_values(log_gate_t=log_gate_t, beta_t=of_delta.get("beta"))
    return out, state if overwrite_state else State(after)


# In compiled code, where it takes no time: the entry need not do it again.
step.checks_values = True  # type: ignore[attr-defined]
