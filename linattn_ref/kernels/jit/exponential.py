"""`linattn_ref.attention.exponential`; causal, by the loop of ``loops/causal_product.py``."""

from linattn_ref.kernels.common import exponential as common
from linattn_ref.kernels.jit import loops

__all__ = ["Saved", "backward", "forward"]


class Saved(common.Saved):
    """What the backward pass needs."""


def forward(q, k, v, feature_map, *, out=None, **options):
    out, saved = common.forward(loops, q, k, v, feature_map, out=out, **options)
    return out, Saved(*saved)


def backward(d_out, saved, *, d_state=None):
    return common.backward(loops, d_out, saved, d_state=d_state)
