"""`linattn_ref.attention.delta`, keeping less: the backward pass makes the rows of the rule again."""

from linattn_ref.attention import delta as page
from linattn_ref.attention.delta import Gradients, State
from linattn_ref.attention.parts.masks import shown
from linattn_ref.kernels.common.delta_rule import without_masked
from linattn_ref.kernels.jit import delta_rule
from linattn_ref.kernels.jit.delta_rule import init_state
from linattn_ref.kernels.jit.loops.delta import delta_product as loop
from linattn_ref.kernels.jit.loops.delta import unit_rows

__all__ = ["Saved", "backward", "forward", "init_state", "step"]


class Saved(page.Saved):
    """The page's, whose rule lacks its rows but for ``u``."""


def forward(q, k, v, beta, log_gate=None, *, normalise=True, scale=None, key_mask=None, state=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    k, v, log_gate = shown(k, key_mask), shown(v, key_mask), without_masked(log_gate, key_mask, v)
    unit_q, unit_k = (unit_rows.unit(q), unit_rows.unit(k)) if normalise else (q, k)
    out, s, u = loop.forward(unit_q, unit_k, v, None, log_gate, state and state.s, beta, scale)
    after = State(s)
    rule = delta_rule.Saved(None, None, None, None, log_gate, u, key_mask, state, after)
    return out, Saved(q, k, v, beta[..., None], rule, normalise, scale, key_mask, after)


def backward(d_out, saved, *, d_state=None):
    q, k, v, beta, rule, normalise, scale, key_mask, _ = saved
    rows = dict(zip("qkev", unit_rows.forward(q, k, v, beta, normalise, scale), strict=True))
    d_q, d_k, d_value, d_e, d_log_gate, d_first = delta_rule.backward(d_out, rule._replace(**rows), d_state=d_state)
    d_q, d_k, d_v, d_beta = unit_rows.backward(d_q, d_k, d_value, d_e, q, k, v, beta, normalise, scale)
    return Gradients(d_q, shown(d_k, key_mask), d_v, d_beta, d_log_gate, d_first)


def step(q_t, k_t, v_t, state, beta_t, log_gate_t=None, *, normalise=True, scale=None, overwrite_state=False):
    scale = q_t.shape[-1] ** -0.5 if scale is None else scale
    more = {"beta": beta_t, "scale": scale, "normalise": normalise, "overwrite_state": overwrite_state}
    return delta_rule.step(q_t, k_t, v_t, state, None, log_gate_t, **more)


step.checks_values = True  # type: ignore[attr-defined]
