"""The sum of many outer products, ``sum_i a_i^T b_i``: what the gradient of a matrix is.

A task makes some columns of the result, all rows of them. Terms are taken ``TERMS`` at a time, of which ``b``'s part is
packed in a panel that stays in the first cache; the part of ``a`` and the task's columns stay in the second.
"""

import numpy as np

from linattn_ref.kernels.jit.loops.cache import kernel
from linattn_ref.kernels.jit.loops.panel import new_panel, product
from linattn_ref.kernels.jit.loops.vector import lanes
from linattn_ref.kernels.jit.loops.views import copy_columns

__all__ = ["outer_product"]

TERMS = 256  # a panel of them has 32 KiB, half of that without AVX-512
PANELS = 4  # a task


def outer_product(a, b):
    """``a.T @ b``, for ``a (n, rows)`` and ``b (n, columns)``, both contiguous."""
    panels = -(-b.shape[1] // lanes(b))
    out = np.zeros((a.shape[1], panels * lanes(b)), b.dtype)  # whole panels
    _outer_product(-(-panels // PANELS), out, a, b)
    return out[:, : b.shape[1]]


# --- Compiled -------------------------------------------------------------------------------------------------------


@kernel(out="rows *", a="terms rows", b="terms columns")
def _outer_product(task, out, a, b):
    width = lanes(b)
    panel = new_panel(TERMS, b)
    for first in range(0, len(a), TERMS):
        a_some, b_some = a[first : first + TERMS], b[first : first + TERMS]
        for column in range(task * PANELS * width, min((task + 1) * PANELS * width, out.shape[1]), width):
            copy_columns(panel, b_some, column)
            product(out[:, column : column + width], a_some.T, panel, True)
