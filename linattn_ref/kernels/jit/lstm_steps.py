"""`linattn_ref.nn.lstm_steps`, some sequences at a time from the first step to the last."""

from linattn_ref.kernels.jit.loops import lstm as loop
from linattn_ref.nn import lstm_steps as page
from linattn_ref.nn.lstm_steps import Gradients, Params

__all__ = ["Saved", "backward", "forward"]


class Saved(page.Saved):
    """What the backward pass needs."""


def forward(x, params):
    h, c, gates = loop.forward(x, *params)  # (1)-(4)
    return h[1:], Saved(x, h, c, gates, params)


def backward(d_h, saved):
    x, h, c, gates, (w, u, _) = saved
    d_x, *d_params = loop.backward(d_h, x, w, u, h, c, gates)  # (5)-(8)
    return Gradients(d_x, Params(*d_params))
