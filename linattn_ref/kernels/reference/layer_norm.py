"""Layer norm of a sum, as `linattn_ref.nn.layer_norm` derives it.

    h = x + a                                                (1)
    y = (h - mean h) / s,   s = sqrt(var h + eps)            (2)
    norm(h) = gain y + bias                                  (3)

``y`` is not kept: from ``h``, its mean and ``s`` it is made again.
"""

import numpy as np

from linattn_ref.kernels.reference.buffers import into

__all__ = ["backward", "forward"]


def forward(x, added, gain, bias, eps, *, total=None, out=None):
    """The sum and its norm.

    Parameters
    ----------
    x : ndarray ``(..., W)``
    added : ndarray ``(..., W)`` or None
        ``a``.
    gain, bias : ndarray ``(W,)``
    eps : float
    total, out : ndarray ``(..., W)``, optional
        To be written to; ``total`` may be ``added`` itself.

    Returns
    -------
    total : ndarray ``(..., W)``
        ``h``; without ``added`` it is ``x``.
    out : ndarray ``(..., W)``
    mean, s : ndarray ``(..., 1)``
    """
    total = x if added is None else into(total, x + added)  # (1)
    mean = total.mean(axis=-1, keepdims=True)
    centred = total - mean
    s = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + x.dtype.type(eps))
    return total, into(out, gain * (centred / s) + bias), mean, s  # (2), (3)


def backward(d_out, past, total, mean, s, gain, *, d_total=None):
    """Gradients of ``h``, gain and bias.

    Parameters
    ----------
    d_out : ndarray ``(..., W)``
    past : ndarray ``(..., W)`` or None
        A gradient that reaches ``h`` past the norm, and is added.
    total, mean, s, gain
        Of :func:`forward`.
    d_total : ndarray ``(..., W)``, optional
        To be written to; it may be ``d_out`` or ``past`` itself.
    """
    rows, y = tuple(range(total.ndim - 1)), (total - mean) / s  # (2)
    d_gain, d_bias = (d_out * y).sum(axis=rows), d_out.sum(axis=rows)  # of (3)  (W,)
    d_y = gain * d_out  # of (3)
    through = (d_y - d_y.mean(axis=-1, keepdims=True) - y * (d_y * y).mean(axis=-1, keepdims=True)) / s  # of (2)
    return into(d_total, through if past is None else past + through), d_gain, d_bias
