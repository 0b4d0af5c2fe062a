"""The loop over a kernel's tasks: each of them once, with the arguments as they are; what one raises is raised."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from linattn_ref.kernels.jit.loops.cache import kernel


class Pair(NamedTuple):
    """Arguments within an argument."""

    start: Any
    step: Any


@kernel(out="n")
def count(task, out, pair, none, factor):
    if task == out.size:
        raise ValueError("no such task")
    if none is None:
        out[task] += factor * (pair.start[0] + task * pair.step[0])


PAIR = Pair(np.array([10.0]), np.array([2.0]))


@pytest.mark.parametrize("loop", ["threaded", "serial"])
@pytest.mark.parametrize("tasks", [0, 1, 5])
def test_each_task_is_done_once(loop, tasks):
    out = np.zeros(5)
    getattr(count, loop)(tasks, out, PAIR, None, 0.5)
    np.testing.assert_array_equal(out, np.where(np.arange(5) < tasks, 5.0 + np.arange(5), 0))


def test_what_a_task_raises_reaches_the_caller():
    with pytest.raises(ValueError, match="no such task"):
        count.serial(6, np.zeros(5), PAIR, None, 0.5)


def test_a_profiler_shows_the_kernels_name():
    code = count.threaded.py_func.__code__
    assert (code.co_name, code.co_filename) == ("count", __file__)
