"""Small kernels that go over their arrays once."""

import math

import numpy as np

from linattn_ref.kernels.cuda.loops.arrays import dtype_of
from linattn_ref.kernels.cuda.loops.device import cuda, inlined, kernel
from linattn_ref.kernels.cuda.loops.tile import BLOCK, PITCH, SIDE, THREADS


def filled(call, shape, dtype, value):
    """A new array ``(heads, *shape)`` of ``value``."""
    x = call.empty(shape, dtype)
    size = call.heads * math.prod(shape)
    call.launch(fill, (-(-size // THREADS),), (THREADS,), x.reshape((size,)), np.dtype(dtype).type(value))
    return x


def dot_rows(call, a, b, sign=1):
    """``sign * sum_c a_ic b_ic`` of ``a, b (heads, N, width)``: ``(heads, N)``."""
    y = call.empty(a.shape[1:2], dtype_of(a))
    blocks = -(-a.shape[1] // SIDE)
    call.launch(dots, (call.heads * blocks,), BLOCK, a, b, y, dtype_of(a).type(sign))
    return y


def share_of(call, denominator):
    """``1 / denominator (heads, N)``, and 0 where that is 0."""
    y = call.empty(denominator.shape[1:], dtype_of(denominator))
    size = math.prod(denominator.shape)
    call.launch(reciprocal, (-(-size // THREADS),), (THREADS,), denominator.reshape((size,)), y.reshape((size,)))
    return y


def divided_rows(call, x, denominator):
    """``x (heads, N, width)`` over ``denominator (heads, N)``, and 0 where that is 0: a new array."""
    y = call.empty(x.shape[1:], dtype_of(x))
    size, rows = math.prod(x.shape), math.prod(denominator.shape)
    views = x.reshape((rows, x.shape[2])), denominator.reshape((rows,)), y.reshape((rows, x.shape[2]))
    call.launch(divide, (-(-size // THREADS),), (THREADS,), *views, x.shape[2])
    return y


def rounds_a_sum_away(dtype):
    """From which log-sum-exp on weights ``exp(a_ij - log_sum_exp_i)`` are off by more than 2^-16 of their size.

    They are a multiple of the real ones there, the more so the larger it is: it has no room for the logarithm of a sum.
    A backward pass adds them up for the rows of :func:`is_large`, and takes :func:`divided_where_large` of ``d_out``.
    """
    return dtype.type(2.0**-15 / np.finfo(dtype).eps)


def divided_where_large(call, x, sums, log_sum_exp, above):
    """``x (heads, N, width)`` over ``sums (heads, N, 1)`` in the rows of :func:`is_large`: a new array."""
    y, rows, size = call.empty(x.shape[1:], dtype_of(x)), math.prod(log_sum_exp.shape), math.prod(x.shape)
    one, two = (rows,), (rows, x.shape[2])
    views = x.reshape(two), sums.reshape(one), log_sum_exp.reshape(one), y.reshape(two)
    call.launch(divide_large, (-(-size // THREADS),), (THREADS,), *views, above)
    return y


def finish(call, out, so_far):
    """The log-sum-exp ``(heads, N)`` of what queries have met, and ``out (heads, N, M)`` over its sum, in place."""
    log_sum_exp, rows, size = call.empty(out.shape[1:2], dtype_of(out)), math.prod(out.shape[:2]), math.prod(out.shape)
    views = out.reshape((rows, out.shape[2])), so_far.reshape((rows, 2)), log_sum_exp.reshape((rows,))
    call.launch(finish_rows, (-(-size // THREADS),), (THREADS,), *views)
    return log_sum_exp


def move_rows(call, x, first_x, y, first_y, count):
    """``y[:, first_y : first_y + count] = x[:, first_x : first_x + count]``."""
    width = math.prod(x.shape[2:])
    x, y = (array.reshape((call.heads, array.shape[1], width)) for array in (x, y))
    call.launch(move, (-(-call.heads * count * width // THREADS),), (THREADS,), x, first_x, y, first_y, count)


def copy_or_zeros(call, state, k, v):
    """A state ``(heads, C, M)`` that may be written to."""
    s = filled(call, (k.shape[2], v.shape[2]), dtype_of(v), 0)
    if state is not None:
        move_rows(call, call.flat(state), 0, s, 0, k.shape[2])
    return s


def mask_of(call, key_mask, k):
    """``(heads, L)``; without one, all True."""
    return filled(call, k.shape[1:2], bool, True) if key_mask is None else call.flat(key_mask, axes=1)


@kernel
def move(x, first_x, y, first_y, count):
    e = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    row, c = e // x.shape[2], e % x.shape[2]
    head, i = row // count, row % count
    if head < x.shape[0]:
        y[head, first_y + i, c] = x[head, first_x + i, c]


@kernel
def fill(x, value):
    i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if i < x.shape[0]:
        x[i] = value


@kernel
def reciprocal(x, y):
    i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if i < x.shape[0]:
        y[i] = 0
        if x[i] != 0:
            y[i] = 1 / x[i]


@kernel
def divide(x, denominator, y, width):
    i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if i < x.shape[0] * width:
        row, c = i // width, i % width
        y[row, c] = 0
        if denominator[row] != 0:
            y[row, c] = x[row, c] / denominator[row]


@inlined
def is_large(log_sum_exp, above):
    """Whether it has no room for the logarithm of a sum of weights; not where there is nothing to be seen, or NaN."""
    return above < log_sum_exp < math.inf or -math.inf < log_sum_exp < -above


@kernel
def divide_large(x, sums, log_sum_exp, y, above):
    i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if i < x.shape[0] * x.shape[1]:
        row, c = i // x.shape[1], i % x.shape[1]
        y[row, c] = x[row, c]
        if is_large(log_sum_exp[row], above):
            y[row, c] = x[row, c] / sums[row]


@kernel
def finish_rows(out, so_far, log_sum_exp):
    i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if i < out.shape[0] * out.shape[1]:
        row, c = i // out.shape[1], i % out.shape[1]
        if so_far[row, 1] == -math.inf or so_far[row, 1] == 0:  # has met no key
            out[row, c] = 0
            log_sum_exp[row] = -math.inf
        else:
            out[row, c] = out[row, c] / so_far[row, 1]
            if c == 0:
                log_sum_exp[row] = so_far[row, 0] + math.log(so_far[row, 1])


@kernel
def dots(a, b, y, sign):
    """``SIDE`` rows per block, and ``SIDE`` threads per row, whose parts are added up in order."""
    parts = cuda.shared.array((SIDE, PITCH), a.dtype)
    blocks = (a.shape[1] + SIDE - 1) // SIDE
    head, i = cuda.blockIdx.x // blocks, cuda.blockIdx.x % blocks * SIDE + cuda.threadIdx.y
    parts[cuda.threadIdx.y, cuda.threadIdx.x] = 0
    if i < a.shape[1]:
        for c in range(cuda.threadIdx.x, a.shape[2], SIDE):
            parts[cuda.threadIdx.y, cuda.threadIdx.x] += a[head, i, c] * b[head, i, c]
    cuda.syncthreads()
    if cuda.threadIdx.x == 0 and i < a.shape[1]:
        for x in range(1, SIDE):
            parts[cuda.threadIdx.y, 0] += parts[cuda.threadIdx.y, x]
        y[head, i] = sign * parts[cuda.threadIdx.y, 0]
