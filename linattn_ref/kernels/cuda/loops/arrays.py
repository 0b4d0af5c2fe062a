"""Arrays in and out: NumPy's are copied to the GPU and back, those of a GPU library stay where they are.

library    results are          on the stream
=========  ===================  =====================================
NumPy      copied back          Numba's default
numba      device arrays        Numba's default, or the array's own
CuPy       ``cupy.ndarray``     CuPy's current
PyTorch    ``torch.Tensor``     PyTorch's current one of that device
=========  ===================  =====================================

That is for kernels called by themselves. A mechanism makes CuPy's arrays of all GPU libraries' first, on that stream
(`linattn_ref.op.libraries`).

All arrays of a call come from one library and, with several GPUs, from the current one. PyTorch's and CuPy's memory
comes from their own pools, which order it by the stream.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.kernels.cuda.loops import device
from linattn_ref.kernels.cuda.loops.device import cuda
from linattn_ref.kernels.cuda.loops.tile import THREADS
from linattn_ref.op.libraries import as_cupy, check_one_origin, is_numba_array
from linattn_ref.op.libraries import is_on_gpu as on_gpu


class Library(NamedTuple):
    """Where arrays come from, and how to make more of them."""

    put: Any  # x -> a contiguous device array with its numbers; not a copy, if x is one already
    empty: Any  # shape, dtype -> a new array on the GPU
    full: Any  # shape, value, dtype -> one full of that value; None if that takes a kernel of ours
    get: Any  # a new array on the GPU -> what the caller is given
    constant: Any  # a NumPy array, such as indices -> the same on the GPU
    stream: Any  # a Numba stream


def library_of(**arrays):
    """The :class:`Library` that all arrays come from; None has none.

    Raises
    ------
    TypeError
        Arrays of two libraries, or of two GPUs; a tensor on the CPU, an array of something else.
    RuntimeError
        There is no GPU.
    """
    given = [(name, x) for name, x in arrays.items() if x is not None]
    origin = check_one_origin(given)
    device.check_gpu()
    return _LIBRARIES[origin.split()[0]](given[0][1])


def dtype_of(x):
    """The NumPy dtype of an array of any library."""
    if isinstance(x, np.ndarray) or is_numba_array(x):
        return x.dtype
    x = x.detach() if hasattr(x, "is_cuda") else x  # PyTorch shows none whose gradient is wanted
    return np.dtype(x.__cuda_array_interface__["typestr"])


def dense(x):
    """``x`` without gaps. NumPy may have a stride of 0 on axes of length 1, which Numba takes for a gap."""
    x = np.ascontiguousarray(x)
    return x.reshape(-1).reshape(x.shape)


# --- The libraries --------------------------------------------------------------------------------------------------


def _numpy(model):
    def put(x):
        return device.cuda.to_device(dense(x))  # host to GPU

    def get(x):
        return x.copy_to_host()  # GPU to host, after all that was launched before

    return Library(put, device.cuda.device_array, None, get, put, device.default_stream())


def _numba(model):
    stream = model.stream or device.default_stream()

    def put(x):
        if not x.is_c_contiguous():
            raise ValueError(f"expected a C-contiguous Numba device array, got strides {x.strides} for shape {x.shape}")
        return x

    def empty(shape, dtype):
        return device.cuda.device_array(shape, dtype, stream=stream)

    def constant(x):
        return device.cuda.to_device(dense(x), stream=stream)

    def get(x):
        return x.bind(stream)  # a new shape has lost it

    return Library(put, empty, None, get, constant, stream)


def _torch(model):
    import torch

    stream = device.numba_stream(torch.cuda.current_stream(model.device).cuda_stream)

    def put(x):
        return x.detach().contiguous()

    def empty(shape, dtype):
        return torch.empty(shape, dtype=getattr(torch, np.dtype(dtype).name), device=model.device)

    def full(shape, value, dtype):
        return torch.full(shape, value, dtype=getattr(torch, np.dtype(dtype).name), device=model.device)

    def constant(x):
        return torch.from_numpy(x).to(model.device)

    def get(x):
        return x if isinstance(x, torch.Tensor) else torch.as_tensor(x, device=model.device)  # the same memory

    return Library(put, empty, full, get, constant, stream)


def _cupy(model):
    import cupy

    stream = device.numba_stream(cupy.cuda.get_current_stream().ptr)
    return Library(cupy.ascontiguousarray, cupy.empty, cupy.full, as_cupy, cupy.asarray, stream)


_LIBRARIES = {"numpy": _numpy, "numba": _numba, "torch": _torch, "cupy": _cupy}


# --- A call ---------------------------------------------------------------------------------------------------------


class Call:
    """One call of a kernel's Python function: its inputs as device arrays, new arrays, launches, results.

    ``heads`` is the product of the leading axes; inside, an array is ``(heads, ...)``.
    """

    def __init__(self, leading, **arrays):
        self.library = library_of(**arrays)
        self.leading, self.heads = tuple(leading), math.prod(leading)

    def flat(self, x, axes=2):
        """``(..., rows, width)`` as a device array ``(heads, rows, width)``; with ``axes=1``, ``(..., rows)``."""
        x = self.library.put(x)
        return device.as_device_array(x.reshape((self.heads, *x.shape[x.ndim - axes :])))

    def empty(self, shape, dtype):
        """A new array ``(heads, *shape)``, to be written whole."""
        return self.library.empty((self.heads, *shape), dtype)

    def full(self, shape, dtype, value):
        """A new array ``(heads, *shape)`` of ``value``."""
        shape = self.heads, *shape
        if self.library.full is not None:
            return self.library.full(shape, value, dtype)
        x, size = self.library.empty(shape, dtype), math.prod(shape)
        self.for_each(fill, size, x.reshape((size,)), np.dtype(dtype).type(value))
        return x

    def launch(self, kernel, grid, block, *arguments):
        """Start a kernel; arrays of any library may be among its arguments."""
        views = (device.as_device_array(x) if on_gpu(x) else x for x in arguments)
        device.launch(kernel, grid, block, self.library.stream, *views)

    def for_each(self, kernel, count, *arguments):
        """The same with a thread for each of ``count`` numbers."""
        self.launch(kernel, (-(-count // THREADS),), (THREADS,), *arguments)

    def results(self, *arrays):
        """``(heads, ...)`` as ``(*leading, ...)`` of the caller's library; None as None."""
        return tuple(None if x is None else self.library.get(x.reshape((*self.leading, *x.shape[1:]))) for x in arrays)

    def state(self, x, axes=2):
        """As :meth:`flat`, of an array that a kernel is to write to."""
        view = self.flat(x, axes)
        if not isinstance(x, np.ndarray) and device.address(view) != device.address(x):
            raise ValueError(f"state: expected contiguous arrays, which a step can write to, got shape {x.shape}")
        return view

    def write_back(self, views, arrays):
        """What a kernel has written to, of NumPy's ``arrays``, into the arrays themselves."""
        for view, x in zip(views, arrays, strict=True):
            if isinstance(x, np.ndarray):
                x[...] = self.library.get(view).reshape(x.shape)  # GPU to host


@device.kernel
def fill(x, value):
    i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if i < x.shape[0]:
        x[i] = value
