"""Memory fetched ahead: what a kernel will need, on its way into a cache while it computes something else."""

from functools import partial

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from linattn_ref.kernels.jit.loops.vector import _integer, _pointer


def _fetch(context, builder, signature, arguments, cache):
    _fetch_at(builder, _pointer(context, builder, signature.args[0], *arguments, ir.IntType(8)), cache)
    return context.get_dummy_value()


def _fetch_at(builder, pointer, cache):
    flags = [_integer(0, 32), _integer(4 - cache, 32), _integer(1, 32)]  # to read, how near, data
    function_type = ir.FunctionType(ir.VoidType(), [pointer.type, *(flag.type for flag in flags)])
    function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch")
    builder.call(function, [pointer, *flags])


@intrinsic
def prefetch(typing_context, array, row, column):
    """Have ``array[row, column]`` fetched into the first-level cache. Any indices will do, also outside the array."""
    return types.void(array, types.intp, types.intp), partial(_fetch, cache=1)


@intrinsic
def prefetch_early(typing_context, array, row, column):
    """The same into the second-level cache: for what is needed so late that it would not stay in the first."""
    return types.void(array, types.intp, types.intp), partial(_fetch, cache=2)
