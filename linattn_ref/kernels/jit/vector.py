"""Short vectors as Numba values: the kernel says which number sits in which lane, LLVM picks the instructions.

A *panel* is a C-contiguous 2-D array with ``lanes(panel)`` columns. One of its rows, loaded, is a `Vector`; ``ROWS`` of
its rows are a `Block`, small enough to stay in registers while a matrix product is summed up in it::

                lane 0   1   2   3        lanes-1
              +---+---+---+---+-- ... --+---+
    row       | x | x | x | x |         | x |   load(panel, row) -> Vector
    row + 1   | x | x | x | x |         | x | \\
    ...       |   |   |   |   |         |   |  > load_block(panel, row + 1) -> Block
    row+ROWS  | x | x | x | x |         | x | /
              +---+---+---+---+-- ... --+---+

A Vector is as wide as two registers of the processor: 32 float32 or 16 float64 with AVX-512, half of that elsewhere. On
a processor with AVX-512, ``NUMBA_CPU_NAME=haswell`` gives the 16 registers of 256 bits that most laptops have: Numba
then compiles for that one, and keeps the result beside the other.

Vectors add, subtract and multiply with ``+ - *``; every other operation is a function below. All of them are lane by
lane, but for `total`, the sum of the lanes. They exist in compiled code only.

Each operation is a Numba *intrinsic*: a function that gets the Numba types of its arguments and returns the signature
of the operation and a ``generate`` that writes its LLVM instructions. No fast-math flag is set anywhere: NaN and inf
behave as IEEE 754 says.
"""

import math
import operator
from functools import partial
from typing import NamedTuple

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


# Two registers to a Vector and this many Vectors to a Block: enough independent sums to keep the multipliers busy,
# few enough that Block, operands and all stay in the 32 (16 without AVX-512) registers.
VECTOR_BYTES, ROWS = (128, 8) if _has_avx512() else (64, 4)


def lanes(array):
    """How many numbers of the array's dtype a Vector holds; for Python and compiled code alike."""
    return VECTOR_BYTES // array.itemsize


@overload(lanes)
def _lanes(array):
    count = VECTOR_BYTES // (array.dtype.bitwidth // 8)
    return lambda array: count  # a constant of the compiled code


# --- The two types --------------------------------------------------------------------------------------------------

NUMBERS = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}


class Vector(types.Type):
    """``lanes`` numbers of one dtype."""

    def __init__(self, dtype):
        self.dtype = dtype
        self.bytes = dtype.bitwidth // 8  # of one number
        self.llvm = ir.VectorType(NUMBERS[dtype], VECTOR_BYTES // self.bytes)
        super().__init__(f"Vector({self.llvm.count} x {dtype})")


class Block(types.Type):
    """``ROWS`` Vectors, the accumulator of a matrix product."""

    def __init__(self, dtype):
        self.dtype = dtype
        self.llvm = ir.ArrayType(Vector(dtype).llvm, ROWS)
        super().__init__(f"Block({ROWS} x {Vector(dtype).name})")


@register_model(Vector)
@register_model(Block)
class _Model(models.PrimitiveModel):
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


@intrinsic
def fma(typing_context, x, y, z):
    """``x * y + z``, rounded once."""
    return x(x, x, x), lambda context, builder, signature, arguments: _fma(builder, *arguments)


@intrinsic
def maximum(typing_context, x, y):
    """``x`` where ``x > y``, else ``y``: a NaN in ``x`` is passed over, one in ``y`` stays."""

    def generate(context, builder, signature, arguments):
        return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)

    return x(x, x), generate


@intrinsic
def minimum(typing_context, x, y):
    """``x`` where ``x < y``, else ``y``: a NaN in ``x`` is passed over, one in ``y`` stays."""

    def generate(context, builder, signature, arguments):
        return builder.select(builder.fcmp_ordered("<", *arguments), *arguments)

    return x(x, x), generate


@intrinsic
def keep_lanes(typing_context, x, first, stop, fill):
    """``x`` in the lanes ``first <= lane < stop``, the number ``fill`` in the others."""

    def generate(context, builder, signature, arguments):
        x_, first_, stop_, fill_ = arguments
        integer = ir.IntType(x.dtype.bitwidth)  # as wide as a lane: one comparison for each register
        indices = ir.VectorType(integer, x.llvm.count)
        lane = ir.Constant(indices, list(range(x.llvm.count)))
        if integer.width < 64:
            first_, stop_ = builder.trunc(first_, integer), builder.trunc(stop_, integer)
        not_before = builder.icmp_signed(">=", lane, _splat(builder, first_, indices))
        before_stop = builder.icmp_signed("<", lane, _splat(builder, stop_, indices))
        return builder.select(builder.and_(not_before, before_stop), x_, _splat(builder, fill_, x.llvm))

    return x(x, types.intp, types.intp, x.dtype), generate


@intrinsic
def keep_between(typing_context, x, low, number, high, fill):
    """``x`` where ``low <= number < high``, two Vectors with a limit for each lane; the number ``fill`` elsewhere."""

    def generate(context, builder, signature, arguments):
        x_, low_, number_, high_, fill_ = arguments
        number_ = _splat(builder, number_, x.llvm)
        not_before = builder.fcmp_ordered("<=", low_, number_)
        before_high = builder.fcmp_ordered("<", number_, high_)
        return builder.select(builder.and_(not_before, before_high), x_, _splat(builder, fill_, x.llvm))

    return x(x, x, x.dtype, x, x.dtype), generate


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

    def generate(context, builder, signature, arguments):
        def maximum_of(x, y):
            return builder.select(builder.fcmp_ordered(">", x, y), x, y)

        return _across(builder, *arguments, maximum_of)

    return x.dtype(x), generate


# --- The exponential ------------------------------------------------------------------------------------------------


class ExpConstants(NamedTuple):
    """What `exp` needs to know about a dtype."""

    mantissa_bits: int
    exponent_bias: int
    lowest: float  # exp is 0 here: log2(e) times it rounds to -exponent_bias
    highest: float  # exp is inf here: log2(e) times it rounds to exponent_bias + 1
    log_2: float  # log(2) rounded to the dtype
    log_2_rest: float  # and what the rounding lost
    degree: int  # the Taylor remainder, (log(2)/2)^(degree + 1) / (degree + 1)!, is below a tenth of an ulp


EXP = {
    types.float32: ExpConstants(23, 127, -88.0, 88.5, 0.693147182464599609375, -1.9046542121259336e-09, 7),
    types.float64: ExpConstants(52, 1023, -709.0, 709.5, 0.6931471805599453094, 2.3190468138462996e-17, 13),
}


@intrinsic
def exp(typing_context, x):
    """``exp(x)``: ``2^n`` times a Taylor polynomial in ``r = x - n log(2)``, ``|r| <= log(2)/2``.

    Within 1 ulp. ``exp(0) == 1``, ``exp(-inf) == 0``, NaN gives NaN. What would be smaller than about 2^-126.5 in
    float32 (2^-1022.5 in float64) is 0; from about 88.4 (709.4) on it is inf, a little early.
    """
    c = EXP[x.dtype]
    integers = ir.VectorType(ir.IntType(x.dtype.bitwidth), x.llvm.count)

    def generate(context, builder, signature, arguments):
        def constant(value):
            return _splat(builder, value, x.llvm)

        (y,) = arguments
        for sign, limit in (("<", constant(c.lowest)), (">", constant(c.highest))):
            y = builder.select(builder.fcmp_ordered(sign, y, limit), limit, y)  # NaN compares false and stays
        # Adding 1.5 * 2^mantissa_bits leaves no room for a fraction: it rounds y / log(2) to an integer n, which then
        # stands in the lowest bits of the sum.
        rounder = constant(1.5 * 2.0**c.mantissa_bits)
        shifted = _fma(builder, y, constant(1 / math.log(2)), rounder)
        n = builder.fsub(shifted, rounder)
        r = _fma(builder, n, constant(-c.log_2), y)
        r = _fma(builder, n, constant(-c.log_2_rest), r)
        polynomial = constant(1 / math.factorial(c.degree))
        for i in reversed(range(c.degree)):
            polynomial = _fma(builder, polynomial, r, constant(1 / math.factorial(i)))
        # 2^n: n + bias moved to the exponent's place. n = -bias gives 0, n = bias + 1 gives inf.
        exponent = builder.add(builder.bitcast(shifted, integers), _splat(builder, c.exponent_bias, integers))
        power = builder.shl(exponent, _splat(builder, c.mantissa_bits, integers))
        return builder.fmul(polynomial, builder.bitcast(power, x.llvm))

    return x(x), generate


# --- Blocks ---------------------------------------------------------------------------------------------------------


@intrinsic
def zero_block(typing_context, panel):
    """A Block of zeros in the dtype of ``panel``."""
    block = Block(panel.dtype)
    return block(panel), lambda context, builder, signature, arguments: ir.Constant(block.llvm, None)


@intrinsic
def load_block(typing_context, panel, row):
    """``panel[row : row + ROWS]`` as a Block."""
    block = Block(panel.dtype)

    def generate(context, builder, signature, arguments):
        panel_, row_ = arguments
        value = ir.Constant(block.llvm, ir.Undefined)
        for r in range(ROWS):
            x = _load_row(context, builder, panel, panel_, builder.add(row_, _integer(r)))
            value = builder.insert_value(value, x, r)
        return value

    return block(panel, types.intp), generate


@intrinsic
def store_block(typing_context, panel, row, block):
    """``panel[row : row + ROWS] = block``."""

    def generate(context, builder, signature, arguments):
        panel_, row_, value = arguments
        for r in range(ROWS):
            x = builder.extract_value(value, r)
            _store_row(context, builder, panel, panel_, builder.add(row_, _integer(r)), x)
        return context.get_dummy_value()

    return types.void(panel, types.intp, Block(panel.dtype)), generate


@intrinsic
def add_outer(typing_context, block, a, row, column, x):
    """``block[r] + a[row + r, column] * x`` for each of the ROWS rows: one step of a matrix product.

    ``a`` is any 2-D array, ``x`` a Vector: ROWS numbers, each broadcast and multiplied with the same Vector.
    """

    def generate(context, builder, signature, arguments):
        value, a_, row_, column_, x_ = arguments
        for r in range(ROWS):
            pointer = _pointer(context, builder, a, a_, builder.add(row_, _integer(r)), column_, NUMBERS[a.dtype])
            number = _splat(builder, builder.load(pointer), x.llvm)
            value = builder.insert_value(value, _fma(builder, number, x_, builder.extract_value(value, r)), r)
        return value

    return block(block, a, types.intp, types.intp, Vector(a.dtype)), generate
