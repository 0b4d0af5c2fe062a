"""Triangles: the pieces of matrix products and of systems of equations in which row ``i`` meets no row after it.

A Block is ``ROWS`` rows of the result, one Vector wide (see `panel`). What it takes from whole Blocks is a product,

    block = add_terms(block, a, row, b, first, stop)         block[r] += sum_t a[row + r, t] b[t]

and what its own rows take from one another goes from row to row, in registers:

    block = add_down(block, a, row, other)                   block[r] += sum_s a[row + r, row + s] other[s],  s <= r
    block = add_up(block, a, row, other)                     block[r] += sum_s a[row + s, row + r] other[s],  s >= r
    block = solve_down(block, a, row)                        block[r] += sum_s a[row + r, row + s] block[s],  s < r
    block = solve_up(block, a, row)                          block[r] += sum_s a[row + s, row + r] block[s],  s > r

No row takes 0 times another one, which may be NaN. The last two are forward substitution for ``(I - a) x = block``
with ``a`` below the diagonal, and backward substitution for its transpose.
"""

from numba import types
from numba.extending import intrinsic

from linattn_ref.kernels.jit.loops.inner import inner
from linattn_ref.kernels.jit.loops.simd.vector import NUMBERS, _fma, _integer, _pointer, _splat, load
from linattn_ref.kernels.jit.loops.simd.vector_block import ROWS, Block, add_scaled, load_block


@inner(forceinline=True)
def add_terms(block, a, row, b, first, stop):
    """``block + a[row : row + ROWS, first:stop] @ b[first:stop]``"""
    for t in range(first, stop):
        block = add_scaled(block, a, row, t, load(b, t))
    return block


@inner(forceinline=True)
def add_triangle(block, a, row, b):
    """``block + a[row : row + ROWS] @ b`` for ``a`` with nothing above its diagonal."""
    return add_down(add_terms(block, a, row, b, 0, row), a, row, load_block(b, row))


@inner(forceinline=True)
def add_transposed(block, a, row, b, rows):
    """``block + a[:rows].T[row : row + ROWS] @ b`` for ``a`` with nothing above its diagonal."""
    return add_terms(add_up(block, a, row, load_block(b, row)), a.T, row, b, row + ROWS, rows)


@intrinsic
def add_down(typing_context, block, a, row, other):
    """Row ``r`` of the Block plus ``a[row + r, row + s]`` times each row ``s <= r`` of the other."""
    steps = [(s, r, r, s) for s in range(ROWS) for r in range(s, ROWS)]
    return Block(a.dtype)(block, a, types.intp, other), _solve(steps)


@intrinsic
def add_up(typing_context, block, a, row, other):
    """Row ``r`` of the Block plus ``a[row + s, row + r]`` times each row ``s >= r`` of the other."""
    steps = [(s, r, s, r) for s in range(ROWS) for r in range(s + 1)]
    return Block(a.dtype)(block, a, types.intp, other), _solve(steps)


@intrinsic
def solve_down(typing_context, block, a, row):
    """Row ``r`` of the Block plus ``a[row + r, row + s]`` times each row ``s < r``, which is complete by then."""
    return Block(a.dtype)(block, a, types.intp), _solve([(s, r, r, s) for s in range(ROWS) for r in range(s + 1, ROWS)])


@intrinsic
def solve_up(typing_context, block, a, row):
    """Row ``r`` of the Block plus ``a[row + s, row + r]`` times each row ``s > r``, which is complete by then."""
    return Block(a.dtype)(block, a, types.intp), _solve([(s, r, s, r) for s in reversed(range(ROWS)) for r in range(s)])


def _solve(steps):
    """Instructions for ``block[r] += a[row + i, row + j] block[s]``, or another Block's, for each ``s, r, i, j``."""

    def generate(context, builder, signature, arguments):
        block, a, row, *others = arguments
        array = signature.args[1]
        x = [builder.extract_value(block, r) for r in range(ROWS)]
        y = [builder.extract_value(others[0], r) for r in range(ROWS)] if others else x
        for s, r, i, j in steps:
            at = builder.add(row, _integer(i)), builder.add(row, _integer(j))
            number = builder.load(_pointer(context, builder, array, a, *at, NUMBERS[array.dtype]))
            x[r] = _fma(builder, _splat(builder, number, y[s].type), y[s], x[r])
        for r in range(ROWS):
            block = builder.insert_value(block, x[r], r)
        return block

    return generate
