"""`linattn_ref.attention.delta_rule`; the loop is ``loops/delta_product.py``."""

from linattn_ref.kernels.common import delta_rule as common
from linattn_ref.kernels.cuda.loops import delta_product as loop

__all__ = ["Saved", "backward", "forward", "step"]


class Saved(common.Saved):
    """What the backward pass needs."""


def forward(q, k, v, erase=None, log_gate=None, **options):
    out, saved = common.forward(loop, q, k, v, erase, log_gate, **options)
    return out, Saved(*saved)


def backward(d_out, saved, *, d_state=None):
    return common.backward(loop, d_out, saved, d_state=d_state)


def step(q_t, k_t, v_t, state, erase_t=None, log_gate_t=None, *, overwrite_state=False):
    return common.step(loop, q_t, k_t, v_t, state, erase_t, log_gate_t, overwrite_state=overwrite_state)
