"""`linattn_ref.attention.reformer`; the loop is ``loops/sparse/lsh.py``."""

from linattn_ref.kernels.common import reformer as common
from linattn_ref.kernels.cuda.loops.sparse import lsh as loop

__all__ = ["Saved", "backward", "forward"]


class Saved(common.Saved):
    """What the backward pass needs."""


def forward(qk, v, **options):
    return common.forward(loop, Saved, qk, v, **options)


def backward(d_out, saved):
    return common.backward(loop, d_out, saved)
