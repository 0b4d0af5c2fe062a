"""Arrays whose holders are not counted: what they are views of stays until it is let go."""

import numpy as np
import pytest
from numba import njit, prange

from linattn_ref.kernels.jit.loops.views import hold, unowned


def kept(count):
    totals = np.zeros(3)
    for i in prange(len(totals)):
        pair, x = (np.ones(count), np.full((2, count), 2.0)), np.full(count, 3.0)
        (one, two), three = unowned(pair), unowned(x)
        other = np.zeros(count), np.zeros((2, count)), np.zeros(count)  # where the others were, if they are given back
        totals[i] = one.sum() + two[1].sum() + three.sum() + other[0].sum() + other[1].sum() + other[2].sum()
        hold(pair)
        hold(x)
    return totals


@pytest.mark.parametrize("parallel", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_is_held_is_not_given_back(parallel):
    compiled = njit(parallel=parallel)(kept)
    for count in (1, 7, 100):
        np.testing.assert_array_equal(compiled(count), 6 * count)
