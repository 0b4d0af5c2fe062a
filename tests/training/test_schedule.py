"""Learning rates: where they start, turn and end."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from linattn_ref.training import schedule


def test_warm_up_reaches_its_peak_at_its_last_step():
    rates = [schedule.warm_up(t, peak=2.0, warmup=4) for t in range(6)]
    assert rates == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_milestones_multiply():
    rates = [schedule.milestones(t, rate=1.0, at=(2, 4), factor=0.5) for t in range(6)]
    assert rates == [1, 1, 0.5, 0.5, 0.25, 0.25]
    for at in ((2, 4), [2, np.uint8(4)], np.array([2, 4])):
        assert schedule.milestones(4, rate=3.0, at=at) == pytest.approx(0.03)


def test_cosine_falls_from_peak_to_last():
    rates = [schedule.cosine(t, peak=1.0, steps=10, last=0.2) for t in range(13)]
    assert rates[0] == 1
    assert rates[5] == pytest.approx(0.6)
    assert rates[10:] == pytest.approx([0.2] * 3)
    assert all(a > b for a, b in pairwise(rates[:11]))
    assert schedule.cosine(10, peak=1.0, steps=30) == pytest.approx(0.75)
    assert schedule.cosine(30, peak=1.0, steps=30) == 0


def test_noam_rises_to_its_warm_up_and_falls_as_a_root():
    rates = [schedule.noam(t, width=64, warmup=10) for t in range(1000)]
    assert max(rates) == rates[9] == pytest.approx((64 * 10) ** -0.5)
    assert rates[0] == pytest.approx(rates[9] / 10)
    assert rates[999] == pytest.approx(rates[9] / 10)
    assert schedule.noam(999, width=64, warmup=10, factor=3.0) == pytest.approx(3 * rates[999])


def test_a_plateau_counts_evaluations_that_brought_nothing_lower():
    """Each time so many in a row are no lower than the lowest before them; then it counts anew."""
    found = [5.0, 4.0, 4.0, 4.5, 3.0, 3.1, 2.9, 3.0, 3.0, 3.0, 3.0]
    rates = [schedule.plateau(found[:count], factor=0.1, patience=2) for count in range(len(found) + 1)]
    assert rates == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.001])
    assert schedule.plateau(found) == 0.5**7


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="warmup: expected an integer of at least 1, got 0"):
        schedule.warm_up(0, peak=1.0, warmup=0)
    with pytest.raises(ValueError, match="patience: expected an integer of at least 1, got 0"):
        schedule.plateau([1.0], patience=0)
    with pytest.raises(ValueError, match="factor: expected a finite number of at least 0, got -2"):
        schedule.plateau([1.0], factor=-2.0)
    for rate in (
        partial(schedule.warm_up, peak=1.0, warmup=4),
        partial(schedule.milestones, rate=1.0, at=(2,)),
        partial(schedule.cosine, peak=1.0, steps=10),
        partial(schedule.noam, width=64, warmup=10),
    ):
        for wrong in (-1, 2.5, None):
            with pytest.raises(ValueError, match=f"t: expected an integer of at least 0, got {wrong}"):
                rate(wrong)
    for wrong in (7, iter((2, 4))):  # an iterator would be used up by the check
        with pytest.raises(TypeError, match="at: expected a sequence of steps, got "):
            schedule.milestones(3, rate=1.0, at=wrong)
    with pytest.raises(ValueError, match="peak: expected a finite number of at least 0, got nan"):
        schedule.warm_up(3, peak=float("nan"), warmup=2)
