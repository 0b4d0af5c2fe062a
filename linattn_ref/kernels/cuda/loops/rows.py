"""Small kernels that go over their arrays once."""

import math

from linattn_ref.kernels.cuda.loops.arrays import dtype_of
from linattn_ref.kernels.cuda.loops.device import cuda, kernel
from linattn_ref.kernels.cuda.loops.tile import BLOCK, PITCH, SIDE, THREADS


def copied(call, x):
    """``x (heads, ...)`` as a new array."""
    y, size = call.empty(x.shape[1:], dtype_of(x)), math.prod(x.shape)
    call.for_each(copy, size, x.reshape((size,)), y.reshape((size,)))
    return y


def dot_rows(call, a, b, sign=1):
    """``sign * sum_c a_ic b_ic`` of ``a, b (heads, N, width)``: ``(heads, N)``."""
    y = call.empty(a.shape[1:2], dtype_of(a))
    blocks = -(-a.shape[1] // SIDE)
    call.launch(dots, (call.heads * blocks,), BLOCK, a, b, y, dtype_of(a).type(sign))
    return y


def divided_rows(call, x, denominator):
    """``x (heads, N, width)`` over ``denominator (heads, N)``, and 0 where that is 0: a new array."""
    y = call.empty(x.shape[1:], dtype_of(x))
    size, rows = math.prod(x.shape), math.prod(denominator.shape)
    views = x.reshape((rows, x.shape[2])), denominator.reshape((rows,)), y.reshape((rows, x.shape[2]))
    call.for_each(divide, size, *views)
    return y


def multiplied_rows(call, x, factors):
    """``x (heads, N, width)`` times ``factors (heads, N)``: a new array."""
    y, rows, size = call.empty(x.shape[1:], dtype_of(x)), math.prod(factors.shape), math.prod(x.shape)
    views = x.reshape((rows, x.shape[2])), factors.reshape((rows,)), y.reshape((rows, x.shape[2]))
    call.for_each(multiply, size, *views)
    return y


def finish(call, out, so_far):
    """What queries have met, ``m`` and ``share (heads, N)``, and ``out (heads, N, M)`` over its sum, in place."""
    m, share = (call.empty(out.shape[1:2], dtype_of(out)) for _ in range(2))
    rows, size = math.prod(out.shape[:2]), math.prod(out.shape)
    views = out.reshape((rows, out.shape[2])), so_far.reshape((rows, 2)), m.reshape((rows,)), share.reshape((rows,))
    call.for_each(finish_rows, size, *views)
    return m, share


def copy_or_zeros(call, state, k, v):
    """A state ``(heads, C, M)`` that may be written to."""
    return call.full((k.shape[2], v.shape[2]), dtype_of(v), 0) if state is None else copied(call, call.flat(state))


def mask_of(call, key_mask, k):
    """``(heads, L)``; without one, all True."""
    return call.full(k.shape[1:2], bool, True) if key_mask is None else call.flat(key_mask, axes=1)


@kernel
def copy(x, y):
    i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if i < x.shape[0]:
        y[i] = x[i]


@kernel
def divide(x, denominator, y):
    i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if i < x.shape[0] * x.shape[1]:
        row, c = i // x.shape[1], i % x.shape[1]
        y[row, c] = 0
        if denominator[row] != 0:
            y[row, c] = x[row, c] / denominator[row]


@kernel
def multiply(x, factors, y):
    i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if i < x.shape[0] * x.shape[1]:
        row, c = i // x.shape[1], i % x.shape[1]
        y[row, c] = factors[row] * x[row, c]


@kernel
def finish_rows(out, so_far, m, share):
    i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if i < out.shape[0] * out.shape[1]:
        row, c = i // out.shape[1], i % out.shape[1]
        met = so_far[row, 1] != -math.inf and so_far[row, 1] != 0
        if not met:
            out[row, c] = 0
        else:
            out[row, c] /= so_far[row, 1]
        if c == 0:
            m[row], share[row] = so_far[row, 0], 0
            if met:
                share[row] = 1 / so_far[row, 1]


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
