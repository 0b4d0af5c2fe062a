"""A step of Adam or RAdam in Numba, once over the memory.

    g <- g + decay p,   p <- keep p                          (1)
    m <- beta_1 m + (1 - beta_1) g                           (2)
    v <- beta_2 v + (1 - beta_2) g^2                         (3)
    p <- p - size m / (root sqrt(v) + eps)

What ``size`` and ``root`` are, `linattn_ref.training.adam` and ``radam`` say.

The row is cut into blocks, each a task. Within one, a slice has one axis and no gaps, which is what the compiler needs
to know to put several numbers into an instruction.
"""

import numpy as np

from linattn_ref.kernels.jit.loops.cache import kernel
from linattn_ref.kernels.jit.loops.inner import inner
from linattn_ref.kernels.jit.loops.rows import without_gaps

__all__ = ["step"]

BLOCK = 1 << 14  # numbers per task


def step(params, grads, m, v, *, betas, size, root, eps, decay=0.0, keep=1.0):
    """Bring ``params``, ``m`` and ``v`` up to date in place; arrays may have any axes and layout."""
    numbers = np.array([*betas, *(1 - beta for beta in betas), size, root, eps, decay, keep], params.dtype)
    moved = params, m, v
    rows = [without_gaps(x).reshape(-1) for x in moved]
    _step(-(-rows[0].size // BLOCK), rows[0], without_gaps(grads).reshape(-1), *rows[1:], numbers)
    for x, row in zip(moved, rows, strict=True):
        if not x.flags.carray:  # then the row is a copy
            x[...] = row.reshape(x.shape)


@kernel(params="n", grads="n", m="n", v="n", numbers="9")
def _step(task, params, grads, m, v, numbers):
    some = slice(task * BLOCK, min((task + 1) * BLOCK, params.size))
    _block(params[some], grads[some], m[some], v[some], numbers)


@inner(error_model="numpy")  # a look at every denominator would keep the loop from being vectorised
def _block(params, grads, m, v, numbers):
    beta_1, beta_2, rest_1, rest_2, size, root, eps, decay, keep = numbers
    for i in range(params.size):
        p = params[i]
        g = grads[i] + decay * p  # (1)
        m[i] = beta_1 * m[i] + rest_1 * g  # (2)
        v[i] = beta_2 * v[i] + rest_2 * g * g  # (3)
        spread = root * np.sqrt(v[i]) if root != 0 else root  # sqrt(v) may be infinite, and 0 times it is NaN
        params[i] = keep * p - size * (m[i] / (spread + eps))
