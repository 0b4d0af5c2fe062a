"""Small kernels that go over words once: `rows` for bfloat16 and float16."""

import math

import numpy as np

from linattn_ref.kernels.cuda.loops.device import cuda, kernel
from linattn_ref.kernels.cuda.loops.half_tiles import WARP_BLOCK, WARPS, ZERO
from linattn_ref.kernels.cuda.loops.half_words import launch
from linattn_ref.kernels.cuda.loops.tensor_cores import high, low, of_lane
from linattn_ref.kernels.cuda.loops.tile import THREADS


def dot_rows(call, numbers, a, b, sign=1):
    """``sign * sum_c a_ic b_ic`` of words ``a, b (heads, N, words)``: ``(heads, N)``, float32."""
    y = call.empty(a.shape[1:2], np.float32)
    grid = (-(-call.heads * a.shape[1] // WARPS),)
    launch(call, numbers, dots, grid, WARP_BLOCK, a, b, y, np.float32(sign))
    return y


def shown(call, numbers, x, mask):
    """Words ``x (heads, N, words)``, 0 in the rows that ``mask (heads, N)`` hides: new ones."""
    y, size = call.empty(x.shape[1:], np.int32), math.prod(x.shape)
    launch(call, numbers, show, (-(-size // THREADS),), (THREADS,), x, mask, y)
    return y


@kernel
def show(x, mask, y):
    e = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    row, w = e // x.shape[2], e % x.shape[2]
    head, i = row // x.shape[1], row % x.shape[1]
    if head < x.shape[0]:
        y[head, i, w] = 0
        if mask[head, i]:
            y[head, i, w] = x[head, i, w]


@kernel
def dots(a, b, y, sign):
    """``y (heads, N)``: ``sign * sum_c a_ic b_ic``; a warp per row."""
    row = cuda.blockIdx.x * WARPS + cuda.threadIdx.y
    head, i = row // a.shape[1], row % a.shape[1]
    total = ZERO
    if head < a.shape[0]:
        for w in range(cuda.threadIdx.x, a.shape[2], 32):
            x, y_word = a[head, i, w], b[head, i, w]
            total += low(x) * low(y_word) + high(x) * high(y_word)
    for bit in range(5):
        total += of_lane(total, 1 << bit)
    if head < a.shape[0] and cuda.threadIdx.x == 0:
        y[head, i] = sign * total
