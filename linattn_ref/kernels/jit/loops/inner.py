"""``inner``: a function that kernels call, or a kernel's task; Python itself never calls it.

Numba also compiles, for each ``@njit`` function and all types of its arguments, a way to call it from Python and one to
call it from C. For a chunk, a tuple of fifteen arrays, these are longer than the function. Kernels do not need them:
without them the delta product compiles in five sixths of the time, to the same instructions. If Python does call such
a function, the process ends: a test calls it from a compiled one.
"""

from functools import partial

from numba import njit

__all__ = ["inner"]

inner = partial(njit, no_cpython_wrapper=True, no_cfunc_wrapper=True)
