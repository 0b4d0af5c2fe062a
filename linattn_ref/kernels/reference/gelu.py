"""GELU of a sum, as `linattn_ref.nn.gelu` derives it.

a = x + b,   y = a Phi(a)                                (1)
dy/da = Phi(a) + a Phi'(a)                               (2)
"""

import math

import numpy as np

from linattn_ref.kernels.reference.buffers import into

__all__ = ["backward", "forward"]


def forward(x, bias, *, out=None, slope=None):
    """``y`` and the slope (2).

    Parameters
    ----------
    x : ndarray ``(..., W)``
    bias : ndarray ``(W,)`` or None
        ``b``.
    out, slope : ndarray ``(..., W)``, optional
        To be written to; ``slope`` may be ``x`` itself, or, where nobody wants it, ``out``.
    """
    from scipy.special import erf

    a = x if bias is None else x + bias
    below = 0.5 * (1 + erf(a * math.sqrt(0.5)))  # Phi(a)
    density = np.exp(-0.5 * a * a) * (1 / math.sqrt(2 * math.pi))  # Phi'(a)
    y, dy_da = a * below, below + a * density  # (1), (2); both before x may be overwritten
    slope = into(slope, dy_da)
    return into(out, y), slope


def backward(d_y, slope, *, out=None):
    """The gradient of ``a``; ``out`` may be ``d_y`` itself."""
    return np.multiply(d_y, slope, out=out)
