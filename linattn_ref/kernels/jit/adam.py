"""A step of Adam or RAdam in Numba: `linattn_ref.kernels.reference.adam`, once over the memory.

The row is cut into blocks, each a task. Within one, a slice has one axis and no gaps, which is what the compiler needs
to know to put several numbers into an instruction.
"""

import numpy as np
from numba import njit, prange

from linattn_ref.kernels.jit.cache import kernel

__all__ = ["step"]

BLOCK = 1 << 14  # numbers a task


def step(params, grads, m, v, *, betas, size, root, eps, decay=0.0, keep=1.0):
    """The reference's."""
    numbers = np.array([*betas, *(1 - beta for beta in betas), size, root, eps, decay, keep], params.dtype)
    _step(params, np.require(grads, requirements="W"), m, v, numbers)


@kernel
def _step(params, grads, m, v, numbers):
    for task in prange((params.size + BLOCK - 1) // BLOCK):
        some = slice(task * BLOCK, min((task + 1) * BLOCK, params.size))
        _block(params[some], grads[some], m[some], v[some], numbers)


@njit(error_model="numpy")  # a look at every denominator would keep the loop from being vectorised
def _block(params, grads, m, v, numbers):
    beta_1, beta_2, rest_1, rest_2, size, root, eps, decay, keep = numbers
    for i in range(params.size):
        p = params[i]
        g = grads[i] + decay * p
        m[i] = beta_1 * m[i] + rest_1 * g  # (1)
        v[i] = beta_2 * v[i] + rest_2 * g * g  # (2)
        params[i] = keep * p - size * (m[i] / (root * np.sqrt(v[i]) + eps))  # (3)
