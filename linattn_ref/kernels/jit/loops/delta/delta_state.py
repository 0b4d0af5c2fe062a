"""The state of the delta product, a panel at a time, as both passes need it: it fades, and takes what a chunk sends."""

from linattn_ref.kernels.jit.loops.inner import inner
from linattn_ref.kernels.jit.loops.simd.triangle import add_terms
from linattn_ref.kernels.jit.loops.simd.vector import load, spread, store
from linattn_ref.kernels.jit.loops.simd.vector_block import ROWS, add_scaled, load_block, store_block, zero_block


@inner(forceinline=True)
def fade_and_add(s, whole, a, x):
    """``s_t = whole_t s_t + sum_i a_it x_i`` for the rows of a panel of the state, ``whole (1, rows)``."""
    factors, a_t = whole.T, a.T
    for row in range(0, len(s), ROWS):
        block = add_scaled(zero_block(s), factors, row, 0, load_block(s, row))
        store_block(s, row, add_terms(block, a_t, row, x, 0, len(x)))


@inner
def scale_rows(target, x, factors, rows):
    """``target_i = factors_i * x_i``, of rows one Vector wide."""
    for i in range(rows):
        store(target, i, load(x, i) * spread(factors, i, 0))
