"""Blocks of vectors, and the panels that stand on them, against NumPy. Small whole numbers: every product and sum is
exact, in any order of adding."""

import numpy as np
import pytest
from numba import njit

from linattn_ref.kernels.jit.loops.simd import panel, vector, vector_block

dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@njit
def product(c, a, b, accumulate):
    panel.product(c, a, b, accumulate)


@njit
def pack(packed, rows, factor):
    panel.pack(packed, rows, factor)


@njit
def unpack(rows, packed, factor):
    panel.unpack(rows, packed, factor)


@njit
def outer_products(c, a, row, b, out):
    block, sums = vector_block.load_block(c, 1), vector_block.zero_block(c)
    for t in range(a.shape[1]):
        block = vector_block.add_scaled(block, a, row, t, vector.load(b, t))
        sums = vector_block.add_scaled(sums, a, row, t, vector.load(b, t))
    vector_block.store_block(out, 2, block)
    vector_block.store_block(out, 2 + vector_block.ROWS, sums)


@dtypes
@pytest.mark.parametrize("transposed", [False, True])
def test_blocks(rng, dtype, transposed, numbers):
    rows, terms, row = vector_block.ROWS, 5, 3
    # Small whole numbers: every product and sum is exact, so that the order of adding does not matter.
    whole = [rng.integers(-8, 9, shape).astype(dtype) for shape in ((row + rows, terms), (terms, row + rows))]
    a = whole[1].T if transposed else whole[0]
    b, c = np.rint(4 * numbers(rng, terms, dtype)), np.rint(4 * numbers(rng, rows + 2, dtype))
    out = numbers(rng, 2 * rows + 3, dtype)
    before = out.copy()
    outer_products(c, a, row, b, out)
    product = a[row : row + rows] @ b
    np.testing.assert_array_equal(out[2 : 2 + rows], c[1 : 1 + rows] + product)
    np.testing.assert_array_equal(out[2 + rows : -1], product)
    np.testing.assert_array_equal(out[[0, 1, -1]], before[[0, 1, -1]])


@dtypes
@pytest.mark.parametrize(
    "rows", [1, vector_block.ROWS - 1, vector_block.ROWS, vector_block.ROWS + 1, 2 * vector_block.ROWS + 3]
)
@pytest.mark.parametrize("accumulate", [False, True])
def test_product(rng, dtype, rows, accumulate, numbers):
    """Any number of rows; the rows of the result beyond them keep what they had. Whole numbers again."""
    terms = 7
    a = rng.integers(-8, 9, (rows, terms)).astype(dtype)
    b, c = np.rint(4 * numbers(rng, terms + 2, dtype)), np.rint(4 * numbers(rng, rows + 2, dtype))
    expected = c.copy()
    expected[:rows] = a @ b[:terms] + (c[:rows] if accumulate else 0)
    product(c, a, b, accumulate)
    np.testing.assert_array_equal(c, expected)


@dtypes
def test_pack_and_unpack(rng, dtype, numbers):
    rows = rng.standard_normal((3, 5)).astype(dtype)
    packed, unpacked = numbers(rng, 6, dtype), np.full((3, 5), np.nan, dtype)
    below = packed[5].copy()
    pack(packed, rows, dtype(2))
    np.testing.assert_array_equal(packed[:5, :3], 2 * rows.T)
    np.testing.assert_array_equal(packed[:5, 3:], 0)
    np.testing.assert_array_equal(packed[5], below)
    unpack(unpacked, packed, dtype(0.5))
    np.testing.assert_array_equal(unpacked, rows)
