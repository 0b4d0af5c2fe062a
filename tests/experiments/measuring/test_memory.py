import platform
from functools import partial
from os import _exit, getpid

import numpy as np
import pytest

from linattn_ref.experiments.measuring.memory import HAND_BACK, KEEP, in_new_process, peak_resident

MIB = 2**20


def peak_of(call):
    return in_new_process(peak_resident, call, malloc=HAND_BACK)


def test_an_array_is_measured_to_its_size():
    """A page more or less at the ends, and what NumPy does for the first time: half a MiB is generous."""
    found = peak_of(partial(np.ones, 32 * MIB, np.uint8))
    assert abs(found - 32 * MIB) < MIB / 2


def test_what_is_reserved_and_never_written_is_not_in_use():
    assert peak_of(partial(np.empty, 32 * MIB, np.uint8)) < MIB / 2


# NumPy's first call takes memory of its own, with some versions of Python a whole MiB.
VARIANCE = """(
    np := __import__("numpy"),
    memory := __import__("linattn_ref.experiments.measuring.memory", fromlist=["memory"]),
    x := np.ones(2**20),
    np.var(x),
    memory.peak_resident(lambda: np.var(x)),
)[-1]"""


def test_the_peak_counts_and_not_what_is_left():
    """``np.var`` of 8 MiB makes the deviations, another 8 MiB, squares them in place, and leaves one number."""
    found = in_new_process(eval, VARIANCE, malloc=HAND_BACK)
    assert abs(found - 8 * MIB) < MIB / 2


def test_the_function_runs_elsewhere():
    assert in_new_process(getpid, malloc=KEEP) != getpid()
    assert in_new_process(divmod, 17, 5, malloc=KEEP) == (3, 2)


def test_a_failure_is_told():
    with pytest.raises(ChildProcessError, match=r"measuring divmod\(1, 0\) .* ZeroDivisionError: .*"):
        in_new_process(divmod, 1, 0, malloc=KEEP)


def test_a_process_that_is_killed_is_told():
    with pytest.raises(ChildProcessError, match="failed: exit status 9"):
        in_new_process(_exit, 9, malloc=KEEP)


# Page faults while an array of 32 MiB is made for the second time: fresh memory that the operating system hands out.
PAGE_FAULTS = """(
    np := __import__("numpy"),
    faults := lambda: __import__("resource").getrusage(0).ru_minflt,
    np.ones(2**22) is None,
    before := faults(),
    np.ones(2**22) is None,
    faults() - before,
)[-1]"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told what to do with freed memory")
def test_freed_memory_is_kept_or_handed_back():
    """Handed back it is 16 huge pages or 8192 small ones; kept, it is what else Python asks for in between."""
    kept, handed_back = (in_new_process(eval, PAGE_FAULTS, {}, malloc=malloc) for malloc in (KEEP, HAND_BACK))
    assert kept < 8
    assert handed_back >= 16
