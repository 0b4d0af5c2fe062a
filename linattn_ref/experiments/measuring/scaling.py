"""How a cost grows with the length, and where one falls below another: from measured points, nothing extrapolated."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Crossing", "Growth", "crossing", "growth", "growth_exponent"]


class Growth(NamedTuple):
    """The exponent of a curve's upper half: 1 for a cost that is linear in the length, 2 for a quadratic one."""

    exponent: float  # slope of the least-squares line through the logarithms
    least: float  # slopes between neighbouring points
    greatest: float
    shortest: int  # of the lengths that it is fitted to
    longest: int


class Crossing(NamedTuple):
    """Where one cost falls below another and stays there."""

    after: int | None  # the longest length at which it is not below; None: it always is
    before: int | None  # the next one, from which on it is below; None: it is not, at the longest length both have
    length: float | None  # in between, by a straight line between the logarithms; None where one of them is


def growth_exponent(lengths: NDArray[Any], values: NDArray[Any]) -> float:
    """The slope of ``log(values)`` over ``log(lengths)`` between the two greatest lengths: 1 linear, 2 quadratic."""
    return float(np.log(values[-1] / values[-2]) / np.log(lengths[-1] / lengths[-2]))


def growth(lengths: Sequence[int], values: Sequence[float]) -> Growth:
    """How ``values`` grow over the longer half of ``lengths``, which ascend; half of an odd number is rounded up.

    Raises
    ------
    ValueError
        Fewer than two points, or a value that is not a positive number.
    """
    if len(lengths) < 2 or len(lengths) != len(values):
        raise ValueError(f"values: expected one for each of at least 2 lengths, got {len(values)} for {len(lengths)}")
    if bad := [value for value in values if not 0 < value < math.inf]:
        raise ValueError(f"values: expected positive numbers, got {bad[0]}")
    half = max(2, (len(lengths) + 1) // 2)
    x, y = np.log(lengths[-half:]), np.log(values[-half:])
    slopes = np.diff(y) / np.diff(x)
    exponent = float(np.polyfit(x, y, 1)[0])
    return Growth(exponent, float(slopes.min()), float(slopes.max()), lengths[-half], lengths[-1])


def crossing(slow: Mapping[int, float], fast: Mapping[int, float]) -> Crossing:
    """The length from which on ``fast`` is below ``slow``, both a cost by length, at every length that both have.

    Raises
    ------
    ValueError
        They have no length in common.
    """
    lengths = sorted(slow.keys() & fast.keys())
    if not lengths:
        raise ValueError("fast: expected a length that slow has too")
    lead = {n: math.log(slow[n] / fast[n]) for n in lengths}  # above 0 where fast is below
    not_below = [n for n in lengths if lead[n] <= 0]
    if not not_below:
        return Crossing(None, lengths[0], None)
    after = not_below[-1]
    if after == lengths[-1]:
        return Crossing(after, None, None)
    before = lengths[lengths.index(after) + 1]
    share = -lead[after] / (lead[before] - lead[after])
    return Crossing(after, before, after * (before / after) ** share)
