import math
from itertools import pairwise

import numpy as np
import pytest

from linattn_ref.experiments.measuring.scaling import Crossing, crossing, growth, growth_exponent

LENGTHS = [2**i for i in range(6, 13)]


@pytest.mark.parametrize("power", [0.5, 1, 2])
def test_exponent_of_a_power_is_found(power):
    found = growth(LENGTHS, [3e-7 * n**power for n in LENGTHS])
    # The logarithms are exact to a rounding or two, and the fit divides by a range of 3.
    np.testing.assert_allclose([found.exponent, found.least, found.greatest], power, atol=1e-13)
    assert (found.shortest, found.longest) == (2**9, 2**12)


def test_only_the_longer_half_counts():
    """A constant of 1 hides the square of short lengths; the range says how much it still bends."""
    values = [1 + (n / 512) ** 2 for n in LENGTHS]
    found = growth(LENGTHS, values)
    slopes = [math.log2(b / a) for a, b in pairwise(values[3:])]
    assert found.least == pytest.approx(slopes[0], abs=1e-12)
    assert found.greatest == pytest.approx(slopes[-1], abs=1e-12)
    assert found.least < found.exponent < found.greatest < 2
    assert growth(LENGTHS, [1e9, 1e9, 1e9, *values[3:]]) == found


def test_an_odd_point_moves_the_exponent_as_least_squares_has_it():
    """Four points are fitted, ``x = -3/2, -1/2, 1/2, 3/2`` in factors of 2; the last is 1 too high: ``1.5 * 1 / 5``."""
    lengths = [1, 2, 4, 8, 16, 32, 64]
    found = growth(lengths, [1, 2, 4, 8, 16, 32, 128])
    assert found.exponent == pytest.approx(1.3, abs=1e-12)
    assert found.least == pytest.approx(1, abs=1e-12)
    assert found.greatest == pytest.approx(2, abs=1e-12)


def test_two_points_are_enough_and_one_is_not():
    assert growth([4, 8], [1, 4]).exponent == pytest.approx(2, abs=1e-13)
    with pytest.raises(ValueError, match="at least 2 lengths, got 1 for 1"):
        growth([4], [1])
    with pytest.raises(ValueError, match="got 3 for 2"):
        growth([4, 8], [1, 2, 3])
    for bad in (0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"expected positive numbers, got {bad}"):
            growth([4, 8], [2, bad])


@pytest.mark.parametrize("where", [65, 100, 1000, 4000])
def test_powers_cross_where_they_are_equal(where):
    """Powers are straight lines between logarithms, so that the interpolation is exact."""
    slow = {n: (n / where) ** 2 for n in LENGTHS}
    fast = {n: n / where for n in LENGTHS}
    found = crossing(slow, fast)
    assert found.length == pytest.approx(where, rel=1e-12)
    assert found.after < where < found.before == 2 * found.after


def test_a_length_at_which_they_are_equal_is_not_below():
    assert crossing({64: 1, 128: 4}, {64: 1, 128: 2}) == Crossing(64, 128, 64)


def test_the_last_crossing_counts():
    lead = {64: 2, 128: 0.5, 256: 2, 512: 0.5, 1024: 2}
    found = crossing(lead, dict.fromkeys(lead, 1))
    assert (found.after, found.before) == (512, 1024)
    assert found.length == pytest.approx(512 * 2**0.5)


def test_always_or_never_below_is_told_without_a_length():
    low, high = {64: 1, 128: 1}, {64: 2, 128: 2}
    assert crossing(high, low) == Crossing(None, 64, None)
    assert crossing(low, high) == Crossing(128, None, None)


def test_only_lengths_that_both_have_are_compared():
    slow = {64: 1, 128: 3, 256: 9}
    fast = {128: 2, 256: 2, 512: 1e9}
    assert crossing(slow, fast) == Crossing(None, 128, None)
    with pytest.raises(ValueError, match="length that slow has too"):
        crossing({64: 1}, {128: 1})


def test_growth_exponent():
    lengths = np.array([1, 10, 20])
    assert growth_exponent(lengths, 7 * lengths**2) == pytest.approx(2)
    assert growth_exponent(lengths, 7 * lengths) == pytest.approx(1)
