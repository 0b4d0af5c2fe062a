"""`linattn_ref.attention.delta`, keeping less: the backward pass makes the rows of the rule again."""

from linattn_ref.attention import delta as page
from linattn_ref.attention.delta import State, unit
from linattn_ref.attention.parts.masks import shown
from linattn_ref.kernels.common.delta_rule import without_masked
from linattn_ref.kernels.jit import delta_rule
from linattn_ref.kernels.jit.delta_rule import init_state
from linattn_ref.kernels.jit.loops import delta_product as loop

__all__ = ["Saved", "backward", "forward", "init_state", "step"]


class Saved(page.Saved):
    """The page's, whose rule lacks its rows but for ``u``."""


def forward(q, k, v, beta, log_gate=None, *, normalise=True, scale=None, key_mask=None, state=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    k, v, log_gate = shown(k, key_mask), shown(v, key_mask), without_masked(log_gate, key_mask, v)
    unit_q, unit_k = (unit(q), unit(k)) if normalise else (q, k)
    out, s, u = loop.forward(unit_q, unit_k, v, None, log_gate, state and state.s, beta, scale)
    after = State(s)
    rule = delta_rule.Saved(None, None, None, None, log_gate, u, key_mask, state, after)
    return out, Saved(q, k, v, beta[..., None], rule, normalise, scale, key_mask, after)


def backward(d_out, saved, *, d_state=None):
    q, k, e, v = rows(saved.q, saved.k, saved.v, saved.beta, saved.normalise, saved.scale)
    rule = saved.rule._replace(q=q, k=k, v=v, e=e)
    return page.backward.page(d_out, page.Saved(*saved._replace(rule=rule)), d_state=d_state)


def step(q_t, k_t, v_t, state, beta_t, log_gate_t=None, *, normalise=True, scale=None, overwrite_state=False):
    scale = q_t.shape[-1] ** -0.5 if scale is None else scale
    more = {"beta": beta_t, "scale": scale, "normalise": normalise, "overwrite_state": overwrite_state}
    return delta_rule.step(q_t, k_t, v_t, state, None, log_gate_t, **more)


step.checks_values = True  # type: ignore[attr-defined]


def rows(q, k, v, beta, normalise, scale):
    """What the rule is given, (1) and (2): queries, keys, what they erase, and values."""
    q, k = (unit(q), unit(k)) if normalise else (q, k)
    return scale * q, k, beta * k, beta * v
