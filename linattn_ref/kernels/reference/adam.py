"""A step of Adam, and of RAdam, over a row of numbers.

    g <- g + decay p,   p <- keep p
    m <- beta_1 m + (1 - beta_1) g                           (1)
    v <- beta_2 v + (1 - beta_2) g^2                         (2)
    p <- p - size m / (root sqrt(v) + eps)                   (3)

What ``size`` and ``root`` are, `linattn_ref.training.adam` and ``radam`` say.
"""

import numpy as np

__all__ = ["step"]


def step(params, grads, m, v, *, betas, size, root, eps, decay=0.0, keep=1.0):
    """Bring ``params``, ``m`` and ``v``, all ``(n,)`` or of another shape, up to date in place."""
    beta_1, beta_2 = betas
    g = grads + decay * params if decay else grads
    params *= keep
    m *= beta_1
    m += (1 - beta_1) * g  # (1)
    v *= beta_2
    v += (1 - beta_2) * g * g  # (2)
    params -= size * (m / (root * np.sqrt(v) + eps))  # (3)
