"""Layer norm in Numba: `linattn_ref.nn.layer_norm`, a row at a time while it is in the cache.

A task is ``ROWS`` rows. Those of the backward pass add up their shares of the gradients of gain and bias; these sums
are added up at the end, in an order that depends on the shape alone: any number of threads gives the same bits.
"""

import numpy as np

from linattn_ref.kernels.jit.loops.cache import kernel
from linattn_ref.kernels.jit.loops.inner import fast
from linattn_ref.kernels.jit.loops.rows import as_rows, without_gaps

__all__ = ["backward", "forward"]

ROWS = 32


def forward(x, gain, bias, eps):
    """``y``, the means and ``s``, ``(..., 1)``."""
    rows, heights = as_rows(x), (*x.shape[:-1], 1)
    out, (mean, s) = np.empty_like(rows), np.empty((2, len(rows)), x.dtype)
    _forward(-(-len(rows) // ROWS), rows, without_gaps(gain), without_gaps(bias), x.dtype.type(eps), out, mean, s)
    return out.reshape(x.shape), mean.reshape(heights), s.reshape(heights)


def backward(d_y, x, mean, s, gain):
    """Gradients of ``x``, gain and bias."""
    rows = as_rows(d_y)
    d_x, shares = np.empty_like(rows), np.empty((-(-len(rows) // ROWS), 2, rows.shape[1]), rows.dtype)  # (tasks, 2, W)
    mean, s, gain = without_gaps(mean).ravel(), without_gaps(s).ravel(), without_gaps(gain)
    _backward(len(shares), rows, as_rows(x), mean, s, gain, d_x, shares)
    d_gain, d_bias = shares.sum(axis=0)
    return d_x.reshape(x.shape), d_gain, d_bias


# --- Compiled -------------------------------------------------------------------------------------------------------


@kernel(x="rows W", gain="W", bias="W", out="rows W", mean="rows", s="rows")
def _forward(task, x, gain, bias, eps, out, mean, s):
    for i in range(task * ROWS, min((task + 1) * ROWS, len(x))):
        mean[i], s[i] = norm_row(x[i], gain, bias, eps, out[i])


@fast
def norm_row(x, gain, bias, eps, out):
    """(1)-(3) of a row, to ``out``, which may be the row itself; returns its mean and ``s``."""
    width, mean, variance = x.dtype.type(x.size), x.dtype.type(0), x.dtype.type(0)
    for j in range(x.size):
        mean += x[j]
    mean /= width
    for j in range(x.size):
        variance += (x[j] - mean) * (x[j] - mean)
    s = np.sqrt(variance / width + eps)  # (1)
    inverse = x.dtype.type(1) / s
    for j in range(x.size):
        out[j] = gain[j] * ((x[j] - mean) * inverse) + bias[j]  # (2), (3)
    return mean, s


@kernel(d_y="rows W", x="rows W", mean="rows", s="rows", gain="W", d_x="rows W", shares="tasks 2 W")
def _backward(task, d_y, x, mean, s, gain, d_x, shares):
    shares[task] = 0
    for i in range(task * ROWS, min((task + 1) * ROWS, len(d_y))):
        _norm_backward(d_y[i], x[i], mean[i], s[i], gain, d_x[i], shares[task, 0], shares[task, 1])


@fast
def _norm_backward(d_y, x, mean, s, gain, d_x, d_gain, d_bias):
    """The gradient of a row, and its shares of those of gain and bias."""
    width, inverse = x.dtype.type(x.size), x.dtype.type(1) / s
    level, along = x.dtype.type(0), x.dtype.type(0)
    for j in range(x.size):
        n = (x[j] - mean) * inverse  # (2)
        level += gain[j] * d_y[j]
        along += gain[j] * d_y[j] * n
        d_gain[j] += d_y[j] * n  # (4)
        d_bias[j] += d_y[j]  # (4)
    level, along = level / width, along / width
    for j in range(x.size):
        d_x[j] = (gain[j] * d_y[j] - level - (x[j] - mean) * inverse * along) * inverse  # (5), (6)
