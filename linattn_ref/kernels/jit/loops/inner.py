"""``inner``: a function that kernels call, or a kernel's task; Python itself never calls it.

Numba also compiles, for each ``@njit`` function and all types of its arguments, a way to call it from Python and one to
call it from C. For a chunk, a tuple of fifteen arrays, these are longer than the function. Kernels do not need them:
without them the delta product compiles in five sixths of the time, to the same instructions. If Python does call such
a function, the process ends: a test calls it from a compiled one.

``once``: one with a single caller, or one for each kind of its arguments. It becomes part of the caller before types
are found. Otherwise it would be optimised by itself, to machine code that nobody calls, and then again within the
caller, and its caller's caller. All kernels together compile in three quarters of the time that this takes.

``fast``: one that may add the numbers of a row in an order that fits the vectors, and fuse a product into a sum. NaN
and inf stay what they are. It is always inlined. Otherwise a process that compiles would call the function as it was
compiled by itself, one that reads the cache would call it as it was compiled within the kernel, and the two may add in
different orders.
"""

from functools import partial

from numba import njit

__all__ = ["fast", "inner", "once"]

inner = partial(njit, no_cpython_wrapper=True, no_cfunc_wrapper=True)
once = inner(inline="always")
fast = partial(inner, fastmath={"reassoc", "contract", "nsz"}, error_model="numpy", forceinline=True)
