"""Blocks: ``ROWS`` rows of a panel as one Numba value, in which a matrix product is summed up; see `vector`::

                   +---+---+---+---+-- ... --+---+
    row            | x | x | x | x |         | x | \\
    ...            |   |   |   |   |         |   |  > load_block(panel, row) -> Block
    row + ROWS - 1 | x | x | x | x |         | x | /
                   +---+---+---+---+-- ... --+---+
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_model

from linattn_ref.kernels.jit.loops.simd import vector
from linattn_ref.kernels.jit.loops.simd.vector import (
    NUMBERS,
    LlvmModel,
    Vector,
    _fma,
    _integer,
    _load_row,
    _pointer,
    _splat,
    _store_row,
)

# Enough independent sums to keep the multipliers busy, few enough that a Block, operands and all, stays in the 32
# registers (16 without AVX-512).
ROWS = 8 if vector.HAS_AVX512 else 4


class Block(types.Type):
    """``ROWS`` Vectors, the accumulator of a matrix product."""

    def __init__(self, dtype):
        self.dtype = dtype
        self.llvm = ir.ArrayType(Vector(dtype).llvm, ROWS)
        super().__init__(f"Block({ROWS} x {Vector(dtype).name})")


register_model(Block)(LlvmModel)


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
def add_scaled(typing_context, block, a, row, column, x):
    """``block[r] + a[row + r, column] * x`` for each of the ROWS rows: with a Vector one step of a matrix product.

    ``a`` is any 2-D array, of which ROWS numbers are broadcast. With a Block for ``x`` each is multiplied by ``x[r]``.
    """

    def generate(context, builder, signature, arguments):
        value, a_, row_, column_, x_ = arguments
        for r in range(ROWS):
            pointer = _pointer(context, builder, a, a_, builder.add(row_, _integer(r)), column_, NUMBERS[a.dtype])
            x_r = builder.extract_value(x_, r) if isinstance(x, Block) else x_
            number = _splat(builder, builder.load(pointer), x_r.type)
            value = builder.insert_value(value, _fma(builder, number, x_r, builder.extract_value(value, r)), r)
        return value

    return block(block, a, types.intp, types.intp, x), generate
