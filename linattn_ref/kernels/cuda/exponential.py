"""`linattn_ref.attention.exponential`; causal, by the loop of ``loops/causal_product.py``."""

from functools import partial

from linattn_ref.kernels.common import exponential as common
from linattn_ref.kernels.cuda import loops

__all__ = ["Saved", "backward", "forward"]


class Saved(common.Saved):
    """What the backward pass needs."""


forward, backward = partial(common.forward, loops, Saved), partial(common.backward, loops)
