"""Layer norm of a sum in Numba: `linattn_ref.kernels.reference.layer_norm`, a row at a time while it is in the cache.

A task is ``ROWS`` rows. Those of the backward pass add up their shares of the gradients of gain and bias; these sums
are added up at the end, in an order that depends on the shape alone: any number of threads gives the same bits.

``FAST`` lets the compiler add the numbers of a row in an order that fits its vectors, and fuse a product into a sum.
NaN and inf stay what they are.
"""

import numpy as np
from numba import njit, prange

from linattn_ref.kernels.jit.loops.cache import kernel
from linattn_ref.kernels.jit.loops.rows import as_rows, give_rows, rows_to_write, without_gaps

__all__ = ["backward", "forward"]

ROWS = 32
FAST = {"reassoc", "contract", "nsz"}


def forward(x, added, gain, bias, eps, *, total=None, out=None):
    """The sum and its norm; arguments and results are the reference's."""
    rows, heights = as_rows(x), (*x.shape[:-1], 1)
    written = rows_to_write(out, x)
    mean, s = np.empty((2, len(rows)), x.dtype)
    if added is None:
        sums, total = rows, x
    else:
        sums = rows_to_write(total, x)
    others = rows if added is None else as_rows(added)
    gain, bias = without_gaps(gain), without_gaps(bias)
    _forward(rows, others, added is not None, gain, bias, x.dtype.type(eps), sums, written, mean, s)
    if added is not None:
        total = give_rows(total, sums, x.shape)
    return total, give_rows(out, written, x.shape), mean.reshape(heights), s.reshape(heights)


def backward(d_out, past, total, mean, s, gain, *, d_total=None):
    """Gradients of the sum, gain and bias; arguments are the reference's."""
    rows, written = as_rows(d_out), rows_to_write(d_total, total)
    shares = np.empty((-(-len(rows) // ROWS), 2, rows.shape[1]), rows.dtype)  # (tasks, 2, W)
    others = rows if past is None else as_rows(past)
    mean, s, gain = without_gaps(mean).ravel(), without_gaps(s).ravel(), without_gaps(gain)
    _backward(rows, others, past is not None, as_rows(total), mean, s, gain, written, shares)
    d_gain, d_bias = shares.sum(axis=0)
    return give_rows(d_total, written, total.shape), d_gain, d_bias


# --- Compiled -------------------------------------------------------------------------------------------------------


@kernel(x="rows W", added="rows W", gain="W", bias="W", total="rows W", out="rows W", mean="rows", s="rows")
def _forward(x, added, with_added, gain, bias, eps, total, out, mean, s):
    for task in prange((len(x) + ROWS - 1) // ROWS):
        for i in range(task * ROWS, min((task + 1) * ROWS, len(x))):
            if with_added:
                _add(x[i], added[i], total[i])
            mean[i], s[i] = _norm(total[i], gain, bias, eps, out[i])


@njit(fastmath=FAST, error_model="numpy")
def _add(x, added, total):
    for j in range(x.size):
        total[j] = x[j] + added[j]  # (1)


@njit(fastmath=FAST, error_model="numpy")
def _norm(h, gain, bias, eps, out):
    """(2) and (3) of a row; its mean and ``s``."""
    width, mean, variance = h.dtype.type(h.size), h.dtype.type(0), h.dtype.type(0)
    for j in range(h.size):
        mean += h[j]
    mean /= width
    for j in range(h.size):
        variance += (h[j] - mean) * (h[j] - mean)
    s = np.sqrt(variance / width + eps)
    inverse = h.dtype.type(1) / s
    for j in range(h.size):
        out[j] = gain[j] * ((h[j] - mean) * inverse) + bias[j]  # (2), (3)
    return mean, s


@kernel(
    d_out="rows W", past="rows W", total="rows W", mean="rows", s="rows", gain="W", d_total="rows W", shares="tasks 2 W"
)
def _backward(d_out, past, with_past, total, mean, s, gain, d_total, shares):
    for task in prange(len(shares)):
        shares[task] = 0
        for i in range(task * ROWS, min((task + 1) * ROWS, len(d_out))):
            added = past[i] if with_past else past[i, :0]
            _norm_backward(d_out[i], added, total[i], mean[i], s[i], gain, d_total[i], shares[task, 0], shares[task, 1])


@njit(fastmath=FAST, error_model="numpy")
def _norm_backward(d_out, past, h, mean, s, gain, d_h, d_gain, d_bias):
    """The gradient of a row, and its shares of those of gain and bias; ``past`` has no numbers if there is none.

    The first loop reads alone, and the last writes a number where it has read: ``d_h`` may be ``d_out`` or ``past``.
    """
    width, inverse = h.dtype.type(h.size), h.dtype.type(1) / s
    level, along = h.dtype.type(0), h.dtype.type(0)
    for j in range(h.size):
        y = (h[j] - mean) * inverse  # (2)
        level += gain[j] * d_out[j]
        along += gain[j] * d_out[j] * y
        d_gain[j] += d_out[j] * y  # of (3)
        d_bias[j] += d_out[j]  # of (3)
    level, along = level / width, along / width
    for j in range(h.size):
        through = (gain[j] * d_out[j] - level - (h[j] - mean) * inverse * along) * inverse  # of (2)
        d_h[j] = through + past[j] if past.size else through
