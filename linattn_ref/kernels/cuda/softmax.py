"""`linattn_ref.attention.softmax` by tiles of keys, without ``P``; the loop is ``loops/softmax.py``."""

from linattn_ref.kernels.common import softmax as common
from linattn_ref.kernels.common.softmax import init_state
from linattn_ref.kernels.cuda.loops import softmax as loop

__all__ = ["Saved", "backward", "forward", "init_state", "step"]


class Saved(common.Saved):
    """What the backward pass needs."""


def forward(q, k, v, *, causal=False, key_mask=None, scale=None, state=None, out=None):
    out, saved = common.forward(loop, q, k, v, causal=causal, key_mask=key_mask, scale=scale, state=state, out=out)
    return out, Saved(*saved)


def backward(d_out, saved):
    return common.backward(loop, d_out, saved, loop_adds_up=True)


def step(q_t, k_t, v_t, state, *, scale=None):
    return common.step(loop, q_t, k_t, v_t, state, scale=scale)
