"""Short vectors as Numba values: the kernel says which number sits in which lane, LLVM picks the instructions.

A *panel* is a C-contiguous 2-D array with ``lanes(panel)`` columns. One of its rows, loaded, is a `Vector`::

              lane 0   1   2   3        lanes-1
            +---+---+---+---+-- ... --+---+
    row     | x | x | x | x |         | x |   load(panel, row) -> Vector
    row + 1 | x | x | x | x |         | x |
            +---+---+---+---+-- ... --+---+

A Vector is as wide as two registers of the processor: 32 float32 or 16 float64 with AVX-512, half of that elsewhere. On
a processor with AVX-512, ``NUMBA_CPU_NAME=haswell`` gives the 16 registers of 256 bits that most laptops have: Numba
then compiles for that one, and keeps the result beside the other.

Vectors add, subtract, multiply and divide with ``+ - * /``; all else are functions, below, in `vector_part`,
`vector_exp` or in `vector_trig`. All of them are lane by lane, but for `total` and `largest_lane`. They exist in
compiled code only: each is a Numba *intrinsic*, a function that gets the Numba types of its arguments and returns the
signature of the operation and a ``generate`` that writes its LLVM instructions. No fast-math flag is set anywhere: NaN
and inf behave as IEEE 754 says.
"""

import operator
from functools import partial

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic, lower_builtin, models, overload, register_model, type_callable


def _has_avx512() -> bool:
    """Does the processor that Numba compiles for have 32 registers of 64 bytes?"""
    if config.CPU_NAME is not None or config.CPU_FEATURES is not None:  # the user's NUMBA_CPU_NAME, NUMBA_CPU_FEATURES
        return "+avx512f" in (config.CPU_FEATURES or "")
    return bool(get_host_cpu_features().get("avx512f", False))


HAS_AVX512 = _has_avx512()
VECTOR_BYTES = 128 if HAS_AVX512 else 64  # two registers
LINE = 64  # bytes of memory that the processor fetches together


def lanes(array):
    """How many numbers of the array's dtype a Vector holds; for Python and compiled code alike."""
    return VECTOR_BYTES // array.itemsize


@overload(lanes)
def _lanes(array):
    count = VECTOR_BYTES // (array.dtype.bitwidth // 8)
    return lambda array: count  # a constant of the compiled code


# --- The type -------------------------------------------------------------------------------------------------------

NUMBERS = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}


class Vector(types.Type):
    """``lanes`` numbers of one dtype."""

    def __init__(self, dtype):
        self.dtype = dtype
        self.bytes = dtype.bitwidth // 8  # of one number
        self.llvm = ir.VectorType(NUMBERS[dtype], VECTOR_BYTES // self.bytes)
        super().__init__(f"Vector({self.llvm.count} x {dtype})")


@register_model(Vector)
class LlvmModel(models.PrimitiveModel):
    """How Numba holds a value whose type names the LLVM type of its values, ``llvm``."""

    def __init__(self, manager, kind):
        super().__init__(manager, kind, kind.llvm)


# --- Pieces of LLVM code --------------------------------------------------------------------------------------------


def _integer(value, bits=64):
    return ir.Constant(ir.IntType(bits), value)


def _splat(builder, x, vector):
    """``x`` in every lane; ``vector`` is the LLVM type."""
    if isinstance(x, (int, float)):
        return ir.Constant(vector, [x] * vector.count)
    undefined = ir.Constant(vector, ir.Undefined)
    lane_0 = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(builder.insert_element(undefined, x, _integer(0, 32)), undefined, lane_0)


def _pointer(context, builder, array_type, array, row, column, pointee):
    """The address of ``array[row, column]``."""
    fields = context.make_array(array_type)(context, builder, array)
    row_stride, column_stride = cgutils.unpack_tuple(builder, fields.strides, 2)
    if array_type.layout == "C":
        column_stride = _integer(array_type.dtype.bitwidth // 8)  # a constant can be part of the instruction
    offset = builder.add(builder.mul(row, row_stride), builder.mul(column, column_stride))
    return cgutils.pointer_add(builder, fields.data, offset, pointee.as_pointer())


def _load_row(context, builder, panel_type, panel, row):
    vector = Vector(panel_type.dtype)
    pointer = _pointer(context, builder, panel_type, panel, row, _integer(0), vector.llvm)
    return builder.load(pointer, align=vector.bytes)  # any address: a panel may be part of a wider array


def _store_row(context, builder, panel_type, panel, row, x):
    vector = Vector(panel_type.dtype)
    pointer = _pointer(context, builder, panel_type, panel, row, _integer(0), vector.llvm)
    builder.store(x, pointer, align=vector.bytes)


def _suffix(vector):
    return "f32" if vector.element == ir.FloatType() else "f64"


def _fma(builder, x, y, z):
    vector = x.type
    function_type = ir.FunctionType(vector, [vector, vector, vector])
    name = f"llvm.fma.v{vector.count}{_suffix(vector)}"
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), [x, y, z])


def _polynomial(builder, x, coefficients):
    """Of a Vector, lowest coefficient first: Horner's rule."""
    *others, value = (_splat(builder, c, x.type) for c in coefficients)
    for c in reversed(others):
        value = _fma(builder, value, x, c)
    return value


# --- Memory ---------------------------------------------------------------------------------------------------------


@intrinsic
def load(typing_context, panel, row):
    """``panel[row]`` as a Vector."""

    def generate(context, builder, signature, arguments):
        return _load_row(context, builder, panel, *arguments)

    return Vector(panel.dtype)(panel, types.intp), generate


@intrinsic
def store(typing_context, panel, row, x):
    """``panel[row] = x``."""

    def generate(context, builder, signature, arguments):
        _store_row(context, builder, panel, *arguments)
        return context.get_dummy_value()

    return types.void(panel, types.intp, Vector(panel.dtype)), generate


@intrinsic
def broadcast(typing_context, x):
    """The number ``x`` in every lane."""
    vector = Vector(x)
    return vector(x), lambda context, builder, signature, arguments: _splat(builder, arguments[0], vector.llvm)


@intrinsic
def spread(typing_context, array, row, column):
    """The number ``array[row, column]`` in every lane."""
    vector = Vector(array.dtype)

    def generate(context, builder, signature, arguments):
        pointer = _pointer(context, builder, array, *arguments, NUMBERS[array.dtype])
        return _splat(builder, builder.load(pointer), vector.llvm)

    return vector(array, types.intp, types.intp), generate


# --- Memory fetched ahead, on its way into a cache while something else is computed -----------------------------------


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


# --- Arithmetic, lane by lane ---------------------------------------------------------------------------------------


def _define_operator(symbol, instruction):
    @type_callable(symbol)
    def result_type(context):
        return lambda x, y: x if isinstance(x, Vector) and x == y else None

    @lower_builtin(symbol, Vector, Vector)
    def generate(context, builder, signature, arguments):
        return getattr(builder, instruction)(*arguments)


_define_operator(operator.add, "fadd")
_define_operator(operator.sub, "fsub")
_define_operator(operator.mul, "fmul")
_define_operator(operator.truediv, "fdiv")


@intrinsic
def fma(typing_context, x, y, z):
    """``x * y + z``, rounded once."""
    return x(x, x, x), lambda context, builder, signature, arguments: _fma(builder, *arguments)


def _choose(builder, sign, x, y):
    """``x`` where it is greater (or less, as the sign says) than ``y``, else ``y``."""
    return builder.select(builder.fcmp_ordered(sign, x, y), x, y)


@intrinsic
def maximum(typing_context, x, y):
    """``x`` where ``x > y``, else ``y``: a NaN in ``x`` is passed over, one in ``y`` stays."""
    return x(x, x), lambda context, builder, signature, arguments: _choose(builder, ">", *arguments)


@intrinsic
def minimum(typing_context, x, y):
    """``x`` where ``x < y``, else ``y``: a NaN in ``x`` is passed over, one in ``y`` stays."""
    return x(x, x), lambda context, builder, signature, arguments: _choose(builder, "<", *arguments)


def _lane_number(builder, i, count, integer):
    """``i``, but 0 below 0 and ``count`` beyond, as an integer of that type."""
    i = builder.select(builder.icmp_signed("<", i, _integer(0)), _integer(0), i)
    i = builder.select(builder.icmp_signed(">", i, _integer(count)), _integer(count), i)
    return i if integer.width == 64 else builder.trunc(i, integer)


@intrinsic
def keep(typing_context, x, first, stop, fill):
    """``x`` in the lanes ``first <= lane < stop``, the number ``fill`` in the others."""

    def generate(context, builder, signature, arguments):
        x_, first_, stop_, fill_ = arguments
        integer = ir.IntType(x.dtype.bitwidth)  # as wide as a lane: one comparison for each register
        indices = ir.VectorType(integer, x.llvm.count)
        lane = ir.Constant(indices, list(range(x.llvm.count)))
        first_, stop_ = (_lane_number(builder, i, x.llvm.count, integer) for i in (first_, stop_))
        not_before = builder.icmp_signed(">=", lane, _splat(builder, first_, indices))
        before_stop = builder.icmp_signed("<", lane, _splat(builder, stop_, indices))
        return builder.select(builder.and_(not_before, before_stop), x_, _splat(builder, fill_, x.llvm))

    return x(x, types.intp, types.intp, x.dtype), generate


@intrinsic
def where_greater(typing_context, a, b, x, other):
    """The Vector ``x`` in the lanes where ``a > b``; in the rest ``other``, a Vector or a number."""
    kind = other if isinstance(other, Vector) else x.dtype

    def generate(context, builder, signature, arguments):
        a_, b_, x_, other_ = arguments
        other_ = other_ if isinstance(kind, Vector) else _splat(builder, other_, x.llvm)
        return builder.select(builder.fcmp_ordered(">", a_, b_), x_, other_)

    return x(a, b, x, kind), generate


def _across(builder, x, combine):
    """All lanes in one number: the halves combined, lane by lane, then the halves of that, and so on."""
    while x.type.count > 1:
        lanes_ = ir.VectorType(ir.IntType(32), x.type.count // 2)
        halves = (list(range(first, first + lanes_.count)) for first in (0, lanes_.count))
        x = combine(*(builder.shuffle_vector(x, x, ir.Constant(lanes_, half)) for half in halves))
    return builder.extract_element(x, _integer(0, 32))


@intrinsic
def total(typing_context, x):
    """The sum of all lanes."""
    return x.dtype(x), lambda context, builder, signature, arguments: _across(builder, *arguments, builder.fadd)


@intrinsic
def largest_lane(typing_context, x):
    """The largest of all lanes, `maximum` of one after the other: a NaN may be passed over."""

    return x.dtype(x), lambda context, builder, signature, arguments: _across(
        builder, *arguments, lambda x, y: _choose(builder, ">", x, y)
    )
