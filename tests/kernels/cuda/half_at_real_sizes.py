"""The kernels for bfloat16 and float16 with blocks of four warps and tiles of 64: ``simulator.py --real-sizes``."""

import pytest
from kernels.cuda.half_cases import check_causal_product, check_softmax

from linattn_ref.kernels.cuda.loops import half_tiles


def test_sizes_are_the_real_ones():
    assert half_tiles.EDGE == 16 * half_tiles.WARPS == 64


def test_a_warp_reads_from_all_banks():
    rows, pairs = half_tiles.ROW_PITCH, half_tiles.PAIR_PITCH
    assert {(g * rows + t) % 32 for g in range(8) for t in range(4)} == set(range(32))
    assert {(t * pairs + g) % 32 for g in range(8) for t in range(4)} == set(range(32))


@pytest.mark.parametrize(("numbers", "causal"), [("bfloat16", True), ("float16", False)])
def test_softmax(numbers, causal):
    check_softmax(numbers, ((), 66, 70, 67, 66), causal=causal, masked=True)


@pytest.mark.parametrize(("numbers", "normalised"), [("bfloat16", True), ("float16", False)])
def test_causal_product(numbers, normalised):
    check_causal_product(numbers, ((), 66, 67, 66), normalised=normalised, continued=True)
