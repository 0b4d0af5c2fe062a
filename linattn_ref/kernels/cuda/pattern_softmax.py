"""`linattn_ref.attention.pattern_softmax`, compiled; the loop is ``loops/sparse/pattern_softmax.py``."""

from linattn_ref.kernels.common import pattern_softmax as common
from linattn_ref.kernels.cuda.loops.sparse import pattern_softmax as loop

__all__ = ["Saved", "backward", "forward"]


class Saved(common.Saved):
    """What the backward pass needs."""


def forward(q, k, v, seen, *, key_mask=None, scale=None):
    return common.forward(loop, Saved, q, k, v, seen, key_mask=key_mask, scale=scale)


def backward(d_out, saved):
    return common.backward(loop, d_out, saved)
