"""`linattn_ref.attention.softmax` by tiles of keys, without ``P``; the loop is ``loops/softmax/softmax.py``."""

from functools import partial

from linattn_ref.kernels.common import softmax as common
from linattn_ref.kernels.common.softmax import init_state
from linattn_ref.kernels.jit.loops.softmax import softmax as loop

__all__ = ["Saved", "backward", "forward", "init_state", "step"]


class Saved(common.Saved):
    """What the backward pass needs."""


forward = partial(common.forward, loop, Saved)
backward, step = partial(common.backward, loop), partial(common.step, loop)
