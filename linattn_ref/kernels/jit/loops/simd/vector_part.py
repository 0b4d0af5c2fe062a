"""The first few lanes of a Vector in memory, where a row has fewer numbers than that; see `vector`."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from linattn_ref.kernels.jit.loops.simd.vector import Vector, _integer, _pointer, _splat, _suffix


def _masked(builder, operation, vector, arguments):
    """LLVM's masked load or store, which leaves the memory of the lanes outside the mask alone."""
    name = f"llvm.masked.{operation}.v{vector.count}{_suffix(vector)}.p0"
    result = vector if operation == "load" else ir.VoidType()
    function_type = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), arguments)


def _first_lanes(builder, vector, count):
    indices = ir.VectorType(ir.IntType(64), vector.count)
    return builder.icmp_signed("<", ir.Constant(indices, list(range(vector.count))), _splat(builder, count, indices))


@intrinsic
def load_first(typing_context, panel, row, count):
    """The first ``count`` numbers of ``panel[row]``, of which there may be no more; 0 in the lanes after them."""
    vector = Vector(panel.dtype)

    def generate(context, builder, signature, arguments):
        panel_, row_, count_ = arguments
        pointer = _pointer(context, builder, panel, panel_, row_, _integer(0), vector.llvm)
        mask = _first_lanes(builder, vector.llvm, count_)
        zero = ir.Constant(vector.llvm, None)
        return _masked(builder, "load", vector.llvm, [pointer, _integer(vector.bytes, 32), mask, zero])

    return vector(panel, types.intp, types.intp), generate


@intrinsic
def store_first(typing_context, panel, row, x, count):
    """``panel[row, :count] = x[:count]``; what lies after them is left alone."""
    vector = Vector(panel.dtype)

    def generate(context, builder, signature, arguments):
        panel_, row_, x_, count_ = arguments
        pointer = _pointer(context, builder, panel, panel_, row_, _integer(0), vector.llvm)
        mask = _first_lanes(builder, vector.llvm, count_)
        _masked(builder, "store", vector.llvm, [x_, pointer, _integer(vector.bytes, 32), mask])
        return context.get_dummy_value()

    return types.void(panel, types.intp, vector, types.intp), generate
