"""`linattn_ref.attention.delta_rule`; the loop is ``loops/delta_product.py``."""

from functools import partial

from linattn_ref.kernels.common import delta_rule as common
from linattn_ref.kernels.cuda.loops import delta_product as loop

__all__ = ["Saved", "backward", "forward", "step"]


class Saved(common.Saved):
    """What the backward pass needs."""


forward = partial(common.forward, loop, Saved)
backward, step = partial(common.backward, loop), partial(common.step, loop)
