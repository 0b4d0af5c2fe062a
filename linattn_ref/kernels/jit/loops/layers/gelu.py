"""GELU of a sum in Numba: `linattn_ref.nn.gelu` of ``x + b``, value and slope in one pass.

With `normal`'s ``Phi``, whose relative error below 0 is about ``x^2 / 2`` roundings, where ``1 + erf`` cancels
altogether.
"""

import numpy as np

from linattn_ref.kernels.jit.loops.cache import kernel
from linattn_ref.kernels.jit.loops.rows import as_rows, without_gaps
from linattn_ref.kernels.jit.loops.simd.normal import DENSITY, scaled_tail
from linattn_ref.kernels.jit.loops.simd.vector import broadcast, fma, lanes, maximum, minimum, where_greater
from linattn_ref.kernels.jit.loops.simd.vector_exp import exp
from linattn_ref.kernels.jit.loops.views import columns_from, load_row, store_row

__all__ = ["forward"]

BLOCK = 1 << 13  # numbers per task
FAR = 40.0  # the density is 0 there, and a square is not yet inf


def forward(x, bias, *, with_slope=True):
    """``y`` and the slope, the bracket of (4).

    Parameters
    ----------
    x : ndarray ``(..., W)``
    bias : ndarray ``(W,)`` or None
    with_slope : bool
        False where nobody reads the slope: then its memory is that of ``y``.
    """
    rows = as_rows(x)
    bias = np.zeros(rows.shape[1], x.dtype) if bias is None else without_gaps(bias)
    y = np.empty_like(rows)
    slopes = np.empty_like(rows) if with_slope else y  # a number of y is written after that of the slope
    n = max(BLOCK // rows.shape[1], 1)
    _forward(-(-len(rows) // n), n, rows, bias[None], y, slopes)
    return y.reshape(x.shape), slopes.reshape(x.shape)


# --- Compiled -------------------------------------------------------------------------------------------------------


@kernel(x="rows W", bias="1 W", y="rows W", slope="rows W")
def _forward(task, n, x, bias, y, slope):
    some = slice(task * n, min((task + 1) * n, len(x)))
    x, y, slope = x[some], y[some], slope[some]
    zero, far = broadcast(x.dtype.type(0)), broadcast(x.dtype.type(FAR))
    half, one, density = broadcast(x.dtype.type(-0.5)), broadcast(x.dtype.type(1)), broadcast(x.dtype.type(DENSITY))
    for first in range(0, x.shape[1], lanes(x)):
        some_x, some_y, some_slope = columns_from(x, first), columns_from(y, first), columns_from(slope, first)
        b = load_row(columns_from(bias, first), 0)
        for i in range(len(x)):
            a = load_row(some_x, i) + b
            near = minimum(far, maximum(zero - far, a))  # NaN stays
            z = maximum(zero - near, near)  # |a|
            bell = exp(half * z * z)
            tail = bell * scaled_tail(z)  # Phi(-|a|)
            below = where_greater(near, zero, one - tail, tail)  # (1)
            store_row(some_slope, i, fma(near, bell * density, below))  # (4)
            store_row(some_y, i, a * below)  # (2)
