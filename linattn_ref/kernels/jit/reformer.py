"""`linattn_ref.attention.reformer`; the loop is ``loops/sparse/lsh.py``."""

from functools import partial

from linattn_ref.kernels.common import reformer as common
from linattn_ref.kernels.jit.loops.sparse import lsh as loop

__all__ = ["Saved", "backward", "forward"]


class Saved(common.Saved):
    """What the backward pass needs."""


forward, backward = partial(common.forward, loop, Saved), partial(common.backward, loop)
