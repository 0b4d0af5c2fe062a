"""Triangles: the pieces of matrix products and of systems of equations in which row ``i`` meets no row after it.

A Block is ``ROWS`` rows of the result, one Vector wide (see `panel`). What it takes from whole Blocks is a product,

    block = add_terms(block, a, row, b, first, stop)         block[r] += sum_t a[row + r, t] b[t]

and what its own rows take from one another goes from row to row, in registers:

    block = solve_down(block, a, row)                        block[r] += sum_s a[row + r, row + s] block[s],  s < r
    block = solve_up(block, a, row)                          block[r] += sum_s a[row + s, row + r] block[s],  s > r

This is forward substitution for ``(I - a) x = block`` with ``a`` below the diagonal, and backward substitution for its
transpose.
"""

from numba import njit, types
from numba.extending import intrinsic

from linattn_ref.kernels.jit.vector import NUMBERS, _fma, _integer, _pointer, _splat, load
from linattn_ref.kernels.jit.vector_block import ROWS, Block, add_outer


@njit(forceinline=True)
def add_terms(block, a, row, b, first, stop):
    """``block + a[row : row + ROWS, first:stop] @ b[first:stop]``"""
    for t in range(first, stop):
        block = add_outer(block, a, row, t, load(b, t))
    return block


@intrinsic
def solve_down(typing_context, block, a, row):
    """Row ``r`` of the Block plus ``a[row + r, row + s]`` times each row ``s < r``, which is complete by then."""
    return Block(a.dtype)(block, a, types.intp), _solve([(s, r, r, s) for s in range(ROWS) for r in range(s + 1, ROWS)])


@intrinsic
def solve_up(typing_context, block, a, row):
    """Row ``r`` of the Block plus ``a[row + s, row + r]`` times each row ``s > r``, which is complete by then."""
    return Block(a.dtype)(block, a, types.intp), _solve([(s, r, s, r) for s in reversed(range(ROWS)) for r in range(s)])


def _solve(steps):
    """Instructions for ``block[r] += a[row + i, row + j] block[s]`` for each ``s, r, i, j``."""

    def generate(context, builder, signature, arguments):
        block, a, row = arguments
        array = signature.args[1]
        x = [builder.extract_value(block, r) for r in range(ROWS)]
        for s, r, i, j in steps:
            at = builder.add(row, _integer(i)), builder.add(row, _integer(j))
            number = builder.load(_pointer(context, builder, array, a, *at, NUMBERS[array.dtype]))
            x[r] = _fma(builder, _splat(builder, number, x[s].type), x[s], x[r])
        for r in range(ROWS):
            block = builder.insert_value(block, x[r], r)
        return block

    return generate
