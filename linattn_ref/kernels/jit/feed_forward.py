"""`linattn_ref.nn.feed_forward` with GELU, ``b_1`` added on the way, keeping ``x`` and ``x W_1``.

The backward pass makes ``h`` again: ``a`` and ``h`` would be half of all that a network keeps.
"""

from typing import NamedTuple

from linattn_ref.kernels.jit.loops.layers import gelu as loop
from linattn_ref.nn import affine, gelu
from linattn_ref.nn import feed_forward as page
from linattn_ref.nn.feed_forward import Gradients, Params
from linattn_ref.op import Array, Float, Of

__all__ = ["Saved", "backward", "forward"]


class Saved(NamedTuple):
    inner: Of[affine.Saved, "E F"]
    a: Float[Array, "... F"]  # x W_1
    outer: Of[affine.Params, "F Y"]


def forward(x, params, *, activation=gelu):
    if activation is not gelu:
        return page.forward.page(x, params, activation=activation)
    a = x @ params.inner.w  # (1), but for b_1
    h, _ = loop.forward(a, params.inner.b, with_slope=False)  # (1), (2)
    y, _ = affine.forward(h, params.outer)  # (3)
    return y, Saved(affine.Saved(x, params.inner), a, params.outer)


def backward(d_y, saved):
    inner, a, outer = saved
    h, slope = loop.forward(a, inner.params.b)  # (2) again
    d_h, d_outer = affine.backward(d_y, affine.Saved(h, outer))  # (4)
    del h
    d_h *= slope  # (5)
    d_x, d_inner = affine.backward(d_h, inner)  # (6)
    return Gradients(d_x, Params(d_inner, d_outer))
