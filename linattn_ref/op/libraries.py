"""The libraries whose arrays are on a GPU: CuPy, PyTorch, Numba. Nothing of them is imported before an array arrives.

CuPy's arrays answer to NumPy's names: ``np.exp(x)`` of one is CuPy's and runs on the GPU. So code written for NumPy's
arrays works for CuPy's, and for the time of a call those of the other libraries are made CuPy's, of the same memory
(`linattn_ref.op.gpu_arrays`). Kernels take all of them as they are (`linattn_ref.kernels.cuda.loops.arrays`).

library    stream                                 memory of new arrays
=========  =====================================  ====================
CuPy       CuPy's current one                     CuPy's
PyTorch    PyTorch's current one of that device   PyTorch's
Numba      the array's own, or the default one    CuPy's
=========  =====================================  ====================
"""

import contextlib
import functools

import numpy as np

__all__ = ["as_cupy", "as_library_of", "as_the_library_of", "check_one_origin", "import_cupy", "is_numba_array"]
__all__ += ["NumbaMemory", "Stream", "is_on_gpu", "origin_of"]

INSTALL = "pip install 'linattn-ref[cuda12]' (or [cuda13], as the driver says in nvidia-smi)"


def is_on_gpu(x):
    """Whether ``x`` is an array of a GPU library, and not one of its arrays on the CPU."""
    if type(x) is np.ndarray:
        return False
    if hasattr(x, "is_cuda"):
        return bool(x.is_cuda)  # a torch.Tensor, be it one whose gradient is wanted
    return is_numba_array(x) or hasattr(x, "__cuda_array_interface__")


def is_numba_array(x):
    """Whether ``x`` is Numba's own device array, or the simulator's."""
    return bool(getattr(x, "__cuda_ndarray__", False))


def origin_of(name, x):
    """The library that ``x`` comes from, and its GPU: ``"torch tensor on cuda:0"``."""
    if isinstance(x, np.ndarray):
        return "numpy array"
    if is_numba_array(x):
        return "numba device array"
    package = type(x).__module__.partition(".")[0]
    if package == "torch" and not x.is_cuda:
        raise TypeError(f"{name}: expected an array on a GPU or a numpy.ndarray, got a torch.Tensor on {x.device}")
    if package == "torch":
        return f"torch tensor on {x.device}"
    if package == "cupy":
        return f"cupy array on device {x.device.id}"
    raise TypeError(
        f"{name}: expected an array of NumPy, Numba, CuPy or PyTorch, got {type(x).__module__}.{type(x).__name__}"
    )


def check_one_origin(arrays):
    """All of ``(name, array)`` come from one place, which is returned.

    Raises
    ------
    TypeError
        Arrays of two libraries, or of two GPUs; a tensor on the CPU, an array of something else.
    """
    (first, model), *others = arrays
    origin = origin_of(first, model)
    for name, x in others:
        if origin_of(name, x) != origin:
            raise TypeError(
                f"{name}: expected {origin} like {first}, got {origin_of(name, x)};"
                " all arrays of a call have to be in one place"
            )
    return origin


# --- As CuPy's and back ---------------------------------------------------------------------------------------------


def import_cupy():
    """CuPy, or what to install."""
    try:
        import cupy
    except ImportError as error:
        raise ImportError(f"arrays on a GPU need CuPy ({error}): {INSTALL}") from error
    return cupy


def as_cupy(x):
    """An array of a GPU library as CuPy's, of the same memory; NumPy's is copied to the GPU."""
    if is_numba_array(x):
        x = NumbaMemory(x)
    elif type(x).__module__.partition(".")[0] == "torch":
        x = x.detach()
    return import_cupy().asarray(x)


def as_library_of(model, x):
    """CuPy's ``x`` as an array of the library that ``model`` comes from, of the same memory."""
    package = "numba" if is_numba_array(model) else type(model).__module__.partition(".")[0]
    if package == "cupy":
        return x
    if any(stride < 0 for stride in x.strides):
        x = import_cupy().ascontiguousarray(x)  # PyTorch has none that run backwards
    if package == "torch":
        import torch

        return torch.as_tensor(x, device=model.device)
    from linattn_ref.kernels.cuda.loops.device import as_device_array

    return as_device_array(x)


@contextlib.contextmanager
def as_the_library_of(model):
    """Within, CuPy works on the GPU of ``model``, and as its library does: on that stream, PyTorch's in its memory."""
    cupy, (stream, memory) = import_cupy(), _stream_and_memory(model)
    with contextlib.ExitStack() as settings:
        settings.enter_context(as_cupy(model).device)
        if stream is not None:
            settings.enter_context(cupy.cuda.Stream.from_external(stream))
        if memory is not None:
            settings.enter_context(cupy.cuda.using_allocator(memory))
        yield


def _stream_and_memory(model):
    """A :class:`Stream` and an allocator for CuPy; None for its own."""
    if is_numba_array(model):
        return Stream(int(model.stream or 0)), None
    if type(model).__module__.partition(".")[0] != "torch":
        return None, None
    import torch

    return Stream(torch.cuda.current_stream(model.device).cuda_stream), _torch_memory()


@functools.cache
def _torch_memory():
    """PyTorch's allocator, on its current stream, for CuPy. ``Tensor.record_stream`` does nothing for this memory.

    One for all calls: arrays that are garbage together with a call's own function could not be freed by it any more.
    """
    import torch

    def allocate(size, device):
        return torch.cuda.caching_allocator_alloc(size, device)

    def free(address, device):
        torch.cuda.caching_allocator_delete(address)

    return import_cupy().cuda.PythonFunctionAllocator(allocate, free).malloc


class NumbaMemory:
    """Numba's array without its stream: for that CuPy would wait, though it is going to work on the same one."""

    def __init__(self, x):
        self.x = x  # to be kept
        self.__cuda_array_interface__ = {**x.__cuda_array_interface__, "stream": None}


class Stream:
    """A ``cudaStream_t``, as CUDA's libraries hand it to one another."""

    def __init__(self, pointer):
        self.pointer = pointer

    def __cuda_stream__(self):
        return 0, self.pointer  # version, pointer
