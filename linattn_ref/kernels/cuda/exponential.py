"""`linattn_ref.attention.exponential`; causal, by the loop of ``loops/linear/causal_product.py``."""

from functools import partial

from linattn_ref.kernels.common import exponential as common
from linattn_ref.kernels.cuda.loops import linear as loops

__all__ = ["Saved", "backward", "forward"]


class Saved(common.Saved):
    """What the backward pass needs."""


def forward(*args, **options):  # the loops take no ``out``: the entry copies
    return common.forward(loops, Saved, *args, **options)


backward = partial(common.backward, loops)
