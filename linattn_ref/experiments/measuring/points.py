"""Time and memory of computations against the length, each point in a process of its own (`memory`).

What is measured is made there, by a function that can be pickled: ``make(name, n, *more)`` returns a call without
arguments. All of a group, mostly those at one length, are timed in turn (`timing`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.experiments.measuring.measurements import measure_all
from linattn_ref.experiments.measuring.memory import HAND_BACK, KEEP, in_new_process, peak_resident
from linattn_ref.experiments.measuring.timing import in_turn, one_thread
from linattn_ref.op import Array

__all__ = ["Group", "Points", "check_counts", "check_lengths", "measure_points", "memory_of", "seconds_of"]

Make = Callable[..., Callable[[], Any]]


class Group(NamedTuple):
    """What is timed in turn."""

    names: Sequence[str]
    length: int
    rounds: int
    more: tuple[Any, ...] = ()
    memory: bool = True  # of each, too


class Points(NamedTuple):
    """What was measured, by group and name."""

    seconds: dict[str, dict[str, Array]]  # (rounds,), CPU time
    memory: dict[str, dict[str, Array]]  # bytes in use at the peak; then what the call returned, if a whole number


def measure_points(
    make: Make, groups: Mapping[str, Group], settings: Mapping[str, Any], *, warm_up: int, **where: Any
) -> Points:
    """Time each group, then measure the memory of each of its names.

    Parameters
    ----------
    make : callable
    groups : mapping
    settings : mapping
        See `measure_all`, which has ``where``: ``parts``, ``resume``, ``progress``.
    warm_up : int
        The length of a first call, which loads kernels, and whose memory is not measured.
    """
    tasks: dict[str, Callable[[], Array]] = {}
    for key, (names, n, rounds, more, _) in groups.items():
        tasks[f"time-{key}"] = partial(in_new_process, seconds_of, make, names, n, more, rounds, malloc=KEEP)
    for key, (names, n, _, more, memory) in groups.items():
        for name in names if memory else ():
            measure = partial(in_new_process, memory_of, make, name, n, more, warm_up, malloc=HAND_BACK)
            tasks[f"memory-{name}-{key}"] = measure
    found = measure_all(tasks, settings, **where)
    return Points(
        {key: dict(zip(group.names, found[f"time-{key}"], strict=True)) for key, group in groups.items()},
        {key: {x: found[f"memory-{x}-{key}"] for x in group.names if group.memory} for key, group in groups.items()},
    )


def seconds_of(make: Make, names: Sequence[str], n: int, more: tuple[Any, ...], rounds: int) -> Array:
    """CPU seconds ``(names, rounds)`` of one thread; to be called by `memory.in_new_process` with KEEP."""
    calls = {name: make(name, n, *more) for name in names}
    with one_thread():
        return np.array(list(in_turn(calls, rounds).values()))


def memory_of(make: Make, name: str, n: int, more: tuple[Any, ...], warm_up: int) -> Array:
    """Bytes in use at the peak, ``(1,)`` or more; to be called by `memory.in_new_process` with HAND_BACK."""
    returned: list[Any] = []
    with one_thread():
        make(name, min(n, warm_up), *more)()
        call = make(name, n, *more)
        peak = peak_resident(lambda: returned.append(call()))
        return np.array([peak, *(x for x in returned if isinstance(x, int))])


def check_lengths(lengths: Sequence[int], rounds: int = 1) -> None:
    """Lengths ascend, and there is something to measure."""
    if list(lengths) != sorted(set(lengths)) or min(lengths, default=0) < 1:
        raise ValueError(f"lengths: expected positive ascending ones, got {lengths}")
    check_counts(rounds=rounds)


def check_counts(**given: int | Sequence[int]) -> None:
    """Raise ValueError unless every number is at least 1."""
    for name, counts in given.items():
        for count in [counts] if isinstance(counts, int) else counts:
            if count < 1:
                raise ValueError(f"{name}: expected at least 1, got {count}")
