"""Arrays of bfloat16 and float16, in and out: seen as words of two numbers, whatever library they come from.

====================  =============================================================
numbers               arrays
====================  =============================================================
float16               NumPy, Numba, CuPy, PyTorch
bfloat16              PyTorch; NumPy with the dtype of ``ml_dtypes``, or the bits as ``V2``
====================  =============================================================

NumPy, CuPy and Numba have no bfloat16. PyTorch calls it ``V2``, two bytes of something, where other libraries ask.

A row of an even width is so many words as it stands, and no copy is made; an odd one gets a 0 at its end.
"""

import math
import sys

import numpy as np

from linattn_ref.kernels.cuda.loops import device
from linattn_ref.kernels.cuda.loops.arrays import dtype_of
from linattn_ref.kernels.cuda.loops.device import cuda, kernel
from linattn_ref.kernels.cuda.loops.tensor_cores import BFLOAT16, FLOAT16
from linattn_ref.kernels.cuda.loops.tile import THREADS

WORD = {"bfloat16": np.dtype(BFLOAT16), "float16": np.dtype(FLOAT16)}
_BFLOAT16 = ("bfloat16", "torch.bfloat16", "|V2")
_FLOAT16 = ("float16", "torch.float16")


def format_of(x):
    """``"bfloat16"``, ``"float16"``, or None for other arrays."""
    name = str(x.dtype)
    return "bfloat16" if name in _BFLOAT16 else "float16" if name in _FLOAT16 else None


def check_formats(**arrays):
    """The one format of all arrays; None has none.

    Raises
    ------
    TypeError
        Naming an array of another dtype.
    """
    given = {name: x for name, x in arrays.items() if x is not None}
    (first, model), *others = given.items()
    for name, x in others:
        if format_of(x) != format_of(model):
            raise TypeError(f"{name}: expected {format_of(model)} like {first}, got {x.dtype}")
    return format_of(model)


def check_float32(**arrays):
    """What stands beside 16-bit arrays: states, sums, denominators.

    Raises
    ------
    TypeError
        Naming an array of another dtype.
    """
    for name, x in arrays.items():
        if x is not None and (format_of(x) or dtype_of(x) != np.float32):
            raise TypeError(f"{name}: expected float32 beside 16-bit arrays, got {x.dtype}")


def words(call, x):
    """``x (..., N, width)`` as ``(heads, N, words)`` of int32 on the GPU."""
    bits = call.flat(_as_int16(x))
    if bits.shape[2] % 2 == 0 and device.address(bits) % 4 == 0:
        return bits.view(np.int32)
    pairs = device.as_device_array(empty_words(call, *bits.shape[1:]))
    call.for_each(copy_rows, math.prod(pairs.shape) * 2, bits, pairs.view(np.int16))
    return pairs


def empty_words(call, rows, width):
    """New words for rows of ``width`` numbers."""
    return call.empty((rows, -(-width // 2)), np.int32)


def results(call, pairs, width, like):
    """Words as ``(..., N, width)`` of the caller's library, with the dtype of ``like``."""
    if width % 2:
        bits = call.empty((pairs.shape[1], width), np.int16)
        call.for_each(copy_rows, math.prod(bits.shape), device.as_device_array(pairs).view(np.int16), bits)
        pairs = bits
    return call.results(pairs)[0].view(like.dtype)


def launch(call, numbers, kernel, grid, block, *arguments):
    """Start a kernel, with words of the type that stands for ``numbers``, a format."""
    device.check_tensor_cores()
    call.launch(kernel, grid, block, *(_typed(x, WORD[numbers]) for x in arguments))


def _typed(x, word):
    if getattr(x, "ndim", 0) == 0 or dtype_of(x) != np.int32:
        return x
    return device.as_device_array(x).view(word)


def _as_int16(x):
    """The same memory."""
    if type(x).__module__.partition(".")[0] == "torch":
        return x.detach().view(sys.modules["torch"].int16)
    return x.view(np.int16)


@kernel
def copy_rows(x, y):
    """``x (heads, N, ...)`` to ``y``, which has longer rows, with 0 at their ends, or shorter ones."""
    e = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    row, c = e // y.shape[2], e % y.shape[2]
    head, i = row // y.shape[1], row % y.shape[1]
    if head < y.shape[0]:
        y[head, i, c] = 0
        if c < x.shape[2]:
            y[head, i, c] = x[head, i, c]
