"""`linattn_ref.attention.linear`; causal, by the loop of ``loops/linear/causal_product.py``."""

from functools import partial

from linattn_ref.kernels.common import linear as common
from linattn_ref.kernels.jit.loops import linear as loops

__all__ = ["Saved", "backward", "forward", "step"]


class Saved(common.Saved):
    """What the backward pass needs."""


forward = partial(common.forward, loops, Saved)
backward, step = partial(common.backward, loops), partial(common.step, loops)
