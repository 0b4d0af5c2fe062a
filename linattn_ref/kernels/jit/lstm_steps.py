"""`linattn_ref.nn.lstm_steps`, some sequences at a time from the first step to the last."""

from linattn_ref.kernels.jit.loops.layers import lstm as loop
from linattn_ref.nn import lstm_steps as page
from linattn_ref.nn.lstm_steps import Gradients, Params

__all__ = ["Saved", "backward", "forward"]


class Saved(page.Saved):
    """What the backward pass needs."""


def forward(x, params, h0=None, c0=None):
    h, c, gates = loop.forward(x, *params, h0, c0)  # (1)-(4)
    return h[1:], Saved(x, h, c, gates, params, (h0 is not None, c0 is not None))


def backward(d_h, saved):
    x, h, c, gates, (w, u, _), (has_h0, has_c0) = saved
    d_x, *d_params, d_h0, d_c0 = loop.backward(d_h, x, w, u, h, c, gates)  # (5)-(8)
    return Gradients(d_x, Params(*d_params), d_h0 if has_h0 else None, d_c0 if has_c0 else None)
