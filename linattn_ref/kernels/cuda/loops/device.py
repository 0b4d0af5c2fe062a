"""The only module here that imports CUDA: from the package ``numba-cuda``, or Numba's simulator where there is no GPU.

A GPU needs ``numba-cuda``; the ``numba.cuda`` inside Numba itself is no longer kept up, and not used. The simulator
runs each GPU thread as a Python thread: slow, but the same kernels, with breakpoints. It is chosen before Numba is
first imported, and any Numba has it::

    NUMBA_ENABLE_CUDASIM=1 python my_script.py

Importing this needs no GPU, so that kernels can be compiled on any machine. Launching one does.
"""

import functools
import os
import threading

try:
    from numba import config, cuda
except ImportError as error:
    raise ImportError(f"linattn_ref.kernels.cuda needs Numba ({error}): pip install 'linattn-ref[cuda12]'") from error

SIMULATED = bool(config.ENABLE_CUDASIM)
INSTALL = (
    "pip install 'linattn-ref[cuda12]' (or [cuda13], as the driver says in nvidia-smi);"
    " without a GPU set NUMBA_ENABLE_CUDASIM=1 before Numba is first imported"
)

if not SIMULATED and cuda.implementation != "NVIDIA":
    told = "; NUMBA_ENABLE_CUDASIM was set too late" if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") != "0" else ""
    raise ImportError(f"linattn_ref.kernels.cuda needs the package numba-cuda{told}: {INSTALL}")

# x & NATURAL is x, 0 <= x < 2^31, and tells the compiler that an index is not one from the end.
NATURAL = 0x7FFFFFFF

if SIMULATED:  # where `cuda` has barriers in the kernel's own module only

    def syncthreads():
        threading.current_thread().syncthreads()

    def syncthreads_or(condition):
        return threading.current_thread().syncthreads_or(condition)

else:
    cuda.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # short sequences are no mistake
    syncthreads, syncthreads_or = cuda.syncthreads, cuda.syncthreads_or


def kernel(function=None, *, threads=None, blocks=None):
    """A kernel, to be started by :func:`launch`.

    With ``threads`` a block and ``blocks`` a multiprocessor, the compiler gives a thread no more registers than leave
    room for that many.
    """
    if function is None:
        bounds = {} if SIMULATED or threads is None else {"launch_bounds": (threads, blocks)}
        return cuda.jit(**bounds)
    return cuda.jit(function)


def inlined(function):
    """A function for kernels to call, put in place of each call before any types are known.

    Numba asks the current device how to compile any other device function, so that there would have to be one. In the
    simulator it is the function itself.
    """
    return function if SIMULATED else cuda.jit(device=True, inline="always")(function)


def launch(function, grid, block, stream, *arguments):
    """Start ``grid`` blocks of ``block`` threads on ``stream``; nothing for an empty grid, which CUDA would refuse."""
    if 0 not in grid:
        function[grid, block, stream](*arguments)


@functools.cache
def check_gpu():
    """There is a GPU, or the simulator."""
    if not SIMULATED and not cuda.is_available():
        raise RuntimeError("linattn_ref.kernels.cuda: no CUDA GPU was found, or no driver for one (see nvidia-smi)")


def check_tensor_cores():
    """The current GPU multiplies matrices of bfloat16 and float16, or there is the simulator."""
    if not SIMULATED and cuda.get_current_device().compute_capability < (8, 0):
        found = "{}.{}".format(*cuda.get_current_device().compute_capability)
        raise RuntimeError(f"16-bit arrays need a GPU of compute capability 8.0 or later, got {found}")


def numba_stream(pointer):
    """A Numba stream for a ``cudaStream_t`` of another library; 0 is the default stream."""
    return cuda.external_stream(pointer) if pointer else cuda.default_stream()


def default_stream():
    """Numba's; in the simulator all streams are one."""
    return 0 if SIMULATED else cuda.default_stream()


def as_device_array(x):
    """What Numba calls the memory of ``x``, which stays where it is; its own arrays as they are."""
    return x if getattr(x, "__cuda_ndarray__", False) else cuda.as_cuda_array(x, sync=False)


def address(x):
    """Where an array of a GPU begins, or one of the simulator's."""
    return (getattr(x, "__cuda_array_interface__", None) or x.__array_interface__)["data"][0]
