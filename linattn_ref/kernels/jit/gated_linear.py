"""A token of `linattn_ref.attention.gated_linear`, by ``loops/delta/delta_product.py``; passes are the page's."""

from linattn_ref.kernels.jit import delta_rule
from linattn_ref.kernels.jit.delta_rule import init_state

__all__ = ["init_state", "step"]


def step(q_t, k_t, v_t, state, log_gate_t, *, scale=None, overwrite_state=False):
    scale = q_t.shape[-1] ** -0.5 if scale is None else scale
    return delta_rule.step(q_t, k_t, v_t, state, None, log_gate_t, scale=scale, overwrite_state=overwrite_state)


step.checks_values = True  # type: ignore[attr-defined]
