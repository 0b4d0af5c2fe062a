"""`linattn_ref.attention.linear`; causal, by the loop of ``loops/causal_product.py``."""

from linattn_ref.kernels.common import linear as common
from linattn_ref.kernels.jit import loops

__all__ = ["Saved", "backward", "forward", "step"]


class Saved(common.Saved):
    """What the backward pass needs."""


def forward(q, k, v, *, out=None, **options):
    out, saved = common.forward(loops, q, k, v, out=out, **options)
    return out, Saved(*saved) if type(saved) is common.Saved else saved


def backward(d_out, saved, *, d_state=None):
    return common.backward(loops, d_out, saved, d_state=d_state)


def step(q_t, k_t, v_t, state, *, overwrite_state=False, **options):
    return common.step(loops, q_t, k_t, v_t, state, overwrite_state=overwrite_state, **options)
