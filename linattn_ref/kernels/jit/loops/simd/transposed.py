"""Transposing in registers: a square tile is loaded, half its numbers change places with the other half, and again.

    a b | c d        a e | c g        a e   i m
    e f | g h        b f | d h        b f   j n
    ----+----   ->   ----+----   ->   c g   k o
    i j | k l        i m | k o        d h   l p
    m n | o p        j n | l p

A tile of ``SIDE`` rows takes ``SIDE log2(SIDE)`` instructions, where one number after the other would take ``SIDE^2``.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from linattn_ref.kernels.jit.loops.inner import inner
from linattn_ref.kernels.jit.loops.simd.vector import NUMBERS, VECTOR_BYTES, _integer, _pointer, lanes

REGISTER_BYTES = VECTOR_BYTES // 2


@inner
def transpose(target, source):
    """``target[c, i] = source[i, c]``, of a whole number of tiles: rows and columns are multiples of ``lanes / 2``."""
    side = lanes(source) // 2
    for row in range(0, source.shape[0], side):
        for column in range(0, source.shape[1], side):
            _transpose_tile(target, source, row, column)


@intrinsic
def _transpose_tile(typing_context, target, source, row, column):
    """The tile that begins at ``source[row, column]``."""
    size = source.dtype.bitwidth // 8
    vector = ir.VectorType(NUMBERS[source.dtype], REGISTER_BYTES // size)

    def generate(context, builder, signature, arguments):
        target_, source_, row_, column_ = arguments
        rows = []
        for i in range(vector.count):
            pointer = _pointer(context, builder, source, source_, builder.add(row_, _integer(i)), column_, vector)
            rows.append(builder.load(pointer, align=size))
        distance = 1
        while distance < vector.count:
            _exchange(builder, rows, distance)
            distance *= 2
        for i, x in enumerate(rows):
            pointer = _pointer(context, builder, target, target_, builder.add(column_, _integer(i)), row_, vector)
            builder.store(x, pointer, align=size)
        return context.get_dummy_value()

    return types.void(target, source, types.intp, types.intp), generate


def _exchange(builder, rows, distance):
    """The upper right quarter of each square of ``2 distance`` rows against its lower left one."""
    count = len(rows)
    kind = ir.VectorType(ir.IntType(32), count)
    is_right = [lane & distance > 0 for lane in range(count)]
    of_upper = [lane + count - distance if right else lane for lane, right in enumerate(is_right)]
    of_lower = [lane + count if right else lane + distance for lane, right in enumerate(is_right)]
    for i in range(count):
        if not i & distance:
            pair = rows[i], rows[i + distance]
            rows[i] = builder.shuffle_vector(*pair, ir.Constant(kind, of_upper))
            rows[i + distance] = builder.shuffle_vector(*pair, ir.Constant(kind, of_lower))
