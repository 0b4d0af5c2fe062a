"""Inner products of rows with one Vector, ``ROWS`` at a time: what a query asks of the keys in a cache.

    block = zero_block(scores)
    block = add_products(block, k, row, q, columns)          block[r] += k[row + r] * q, lane by lane
    store_totals(scores, i, j, block)                        scores[i, j + r] = total(block[r])

To add up the lanes of a Vector takes as many instructions as to add up all of a Block's Vectors together: halves of two
rows go into one, and halves of these halves, until there is one row with some sums of each.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from linattn_ref.kernels.jit.loops.simd.vector import LINE, VECTOR_BYTES, Vector, _fetch_at, _fma, _integer, _pointer
from linattn_ref.kernels.jit.loops.simd.vector_block import ROWS, Block
from linattn_ref.kernels.jit.loops.simd.vector_part import _first_lanes, _masked


def _rows_from(context, builder, array_type, array, row):
    """The addresses of ROWS rows: one multiplication, the others by adding."""
    pointer = _pointer(context, builder, array_type, array, row, _integer(0), ir.IntType(8))
    stride = builder.extract_value(context.make_array(array_type)(context, builder, array).strides, 0)
    for _ in range(ROWS):
        yield pointer
        pointer = cgutils.pointer_add(builder, pointer, stride)


@intrinsic
def prefetch_rows(typing_context, panel, row):
    """Have ROWS rows, as wide as a Vector, fetched into the first-level cache; they may be outside the array."""

    def generate(context, builder, signature, arguments):
        for pointer in _rows_from(context, builder, panel, *arguments):
            for line in range(0, VECTOR_BYTES, LINE):
                _fetch_at(builder, cgutils.pointer_add(builder, pointer, _integer(line)), cache=1)
        return context.get_dummy_value()

    return types.void(panel, types.intp), generate


@intrinsic
def add_products(typing_context, block, panel, row, x, count):
    """``block[r] + panel[row + r] * x``, lane by lane, of each row the first ``count`` numbers."""
    vector = Vector(panel.dtype)

    def generate(context, builder, signature, arguments):
        value, panel_, row_, x_, count_ = arguments
        lanes, zero = _first_lanes(builder, vector.llvm, count_), ir.Constant(vector.llvm, None)
        for r, pointer in enumerate(_rows_from(context, builder, panel, panel_, row_)):
            address = builder.bitcast(pointer, vector.llvm.as_pointer())
            y = _masked(builder, "load", vector.llvm, [address, _integer(vector.bytes, 32), lanes, zero])
            value = builder.insert_value(value, _fma(builder, y, x_, builder.extract_value(value, r)), r)
        return value

    return block(block, panel, types.intp, vector, types.intp), generate


@intrinsic
def store_totals(typing_context, panel, row, column, block):
    """``panel[row, column + r] = total(block[r])`` for each of the ROWS rows."""

    def generate(context, builder, signature, arguments):
        panel_, row_, column_, value = arguments
        rows = [builder.extract_value(value, r) for r in range(ROWS)]
        group = rows[0].type.count  # lanes that belong to one row
        while group > 1:
            pairs = zip(rows[::2], rows[1::2], strict=True) if len(rows) > 1 else [(rows[0], rows[0])]
            count = rows[0].type.count * min(len(rows), 2)  # lanes of a pair
            rows = [_fold(builder, x, y, count, group) for x, y in pairs]
            group //= 2
        pointer = _pointer(context, builder, panel, panel_, row_, column_, rows[0].type)
        builder.store(rows[0], pointer, align=panel.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(panel, types.intp, types.intp, Block(panel.dtype)), generate


def _fold(builder, x, y, count, group):
    """Of the first ``count`` lanes of ``x`` and ``y`` together, each ``group`` folded in two and added."""
    kind = ir.VectorType(ir.IntType(32), count // 2)
    near = [lane for lane in range(count) if lane % group < group // 2]
    far = [lane + group // 2 for lane in near]
    return builder.fadd(*(builder.shuffle_vector(x, y, ir.Constant(kind, half)) for half in (near, far)))
