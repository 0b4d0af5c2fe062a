"""`linattn_ref.attention.reformer`; the loop is ``loops/lsh.py``."""

from linattn_ref.kernels.common import reformer as common
from linattn_ref.kernels.jit.loops import lsh as loop

__all__ = ["Saved", "backward", "forward"]


class Saved(common.Saved):
    """What the backward pass needs."""


def forward(qk, v, *, out=None, **options):
    out, saved = common.forward(loop, qk, v, out=out, **options)
    return out, Saved(*saved)


def backward(d_out, saved):
    return common.backward(loop, d_out, saved)
