"""`linattn_ref.attention.exponential`; causal, by the loop of ``loops/linear/causal_product.py``."""

from functools import partial

from linattn_ref.kernels.common import exponential as common
from linattn_ref.kernels.jit.loops import linear as loops

__all__ = ["Saved", "backward", "forward"]


class Saved(common.Saved):
    """What the backward pass needs."""


forward, backward = partial(common.forward, loops, Saved), partial(common.backward, loops)
