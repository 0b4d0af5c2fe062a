"""The feature map ``elu + 1``, the one of "Transformers are RNNs": what a kernel room may do faster than NumPy.

    phi(x) = x + 1 if x > 0 else exp(x)                      (1)
    phi'(x) = 1 if x > 0 else exp(x)  =  min(phi(x), 1)      (2)

Elementwise, little arithmetic and much memory: NumPy goes over the array once for each operation.
"""

import numpy as np

from linattn_ref.kernels.reference import causal_product
from linattn_ref.kernels.reference.buffers import into

__all__ = ["backward", "forward", "step"]


def forward(x, *, out=None):
    """``phi(x)``, written to ``out`` if there is one; and what the gradient needs, which is the same."""
    phi = into(out, np.exp(np.minimum(x, 0)) + np.maximum(x, 0))  # (1)
    return phi, phi


def backward(d_phi, phi):
    """The gradient of ``x``, written over that of ``phi(x)``."""
    d_phi *= np.minimum(phi, 1)  # (2)
    return d_phi


def step(q, k, v, s, z, eps):
    """One token, ``(..., D)``, ``(..., D)``, ``(..., M)`` -> ``out (..., M)``; see `causal_product.step`."""
    return causal_product.step(forward(q)[0], forward(k)[0], v, s, z, eps)
