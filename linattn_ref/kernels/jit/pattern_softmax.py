"""`linattn_ref.attention.pattern_softmax`, compiled; the loop is ``loops/sparse/pattern_softmax.py``."""

from functools import partial

from linattn_ref.kernels.common import pattern_softmax as common
from linattn_ref.kernels.jit.loops.sparse import pattern_softmax as loop

__all__ = ["Saved", "backward", "forward"]


class Saved(common.Saved):
    """What the backward pass needs."""


forward, backward = partial(common.forward, loop, Saved), partial(common.backward, loop)
