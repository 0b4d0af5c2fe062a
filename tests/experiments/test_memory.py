from functools import partial
from os import _exit, getpid

import numpy as np
import pytest

from linattn_ref.experiments.memory import in_new_process, peak_resident

MIB = 2**20


def peak_of(call):
    return in_new_process(peak_resident, call)


def test_an_array_is_measured_to_its_size():
    """A page more or less at the ends, and what NumPy does for the first time: half a MiB is generous."""
    found = peak_of(partial(np.ones, 32 * MIB, np.uint8))
    assert abs(found - 32 * MIB) < MIB / 2


def test_what_is_reserved_and_never_written_is_not_in_use():
    assert peak_of(partial(np.empty, 32 * MIB, np.uint8)) < MIB / 2


def test_the_peak_counts_and_not_what_is_left():
    """``np.var`` of 8 MiB makes the deviations, another 8 MiB, squares them in place, and leaves one number."""
    found = in_new_process(peak_resident, partial(np.var, np.ones(MIB)))
    assert abs(found - 8 * MIB) < MIB / 2


def test_the_function_runs_elsewhere():
    assert in_new_process(getpid) != getpid()
    assert in_new_process(divmod, 17, 5) == (3, 2)


def test_a_failure_is_told():
    with pytest.raises(ChildProcessError, match=r"measuring divmod\(1, 0\) .* ZeroDivisionError: .*"):
        in_new_process(divmod, 1, 0)


def test_a_process_that_is_killed_is_told():
    with pytest.raises(ChildProcessError, match="failed: exit status 9"):
        in_new_process(_exit, 9)
