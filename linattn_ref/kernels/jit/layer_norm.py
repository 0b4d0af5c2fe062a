"""`linattn_ref.nn.layer_norm`, a row at a time while it is in the cache; ``x`` is kept, and two numbers per row."""

from typing import NamedTuple

from linattn_ref.kernels.jit.loops.layers import layer_norm as loop
from linattn_ref.nn.layer_norm import Gradients, Params
from linattn_ref.op import Array, Float

__all__ = ["Saved", "backward", "forward"]


class Saved(NamedTuple):
    x: Float[Array, "... W"]
    m: Float[Array, "... 1"]
    s: Float[Array, "... 1"]
    params: Params
    eps: float


def forward(x, params, *, eps=1e-5):
    y, m, s = loop.forward(x, *params, eps)  # (1)-(3)
    return y, Saved(x, m, s, params, eps)


def backward(d_y, saved):
    x, m, s, (gain, _), _ = saved
    d_x, *d_params = loop.backward(d_y, x, m, s, gain)  # (4)-(6)
    return Gradients(d_x, Params(*d_params))
