"""CPU time of several computations side by side, on one thread.

They take turns in one process, round after round, so that a machine whose speed drifts is equally fast for all. To
compare two, divide their times within a round. CPU time does not count what other processes take.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numba
from threadpoolctl import threadpool_limits

__all__ = ["against_jit", "in_turn", "one_thread", "second_thread"]


@contextmanager
def one_thread(torch: Any = None) -> Iterator[None]:
    """One thread for Numba, BLAS and PyTorch, if that module is given; as many as before at the end."""
    numba_before, torch_before = numba.get_num_threads(), torch and torch.get_num_threads()
    try:
        numba.set_num_threads(1)
        if torch:
            torch.set_num_threads(1)
        with threadpool_limits(1):
            yield
    finally:
        numba.set_num_threads(numba_before)
        if torch:
            torch.set_num_threads(torch_before)


def in_turn(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of CPU time that each call took in each of ``rounds`` rounds, after a round that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(1 + rounds):
        for name, call in calls.items():
            start = time.process_time()
            call()
            seconds[name].append(time.process_time() - start)
    return {name: times[1:] for name, times in seconds.items()}


def against_jit(calls: Mapping[str, Callable[[], object]], rounds: int, *, work: int) -> dict[str, dict[str, float]]:
    """Time calls in turn, one of them named ``"jit"``, that do their work so often each: see :func:`in_turn`.

    Each gets its times, and what they are of those of ``"jit"`` in the same rounds.
    """
    seconds, found = in_turn(calls, rounds), {}
    for name, times in seconds.items():
        ratios = [mine / ours for mine, ours in zip(times, seconds["jit"], strict=True)]
        median_ms, min_ms = (1e3 * x / work for x in (statistics.median(times), min(times)))
        compared = {"ratio_median": statistics.median(ratios), "ratio_min": min(ratios)}
        found[name] = {"median_ms": median_ms, "min_ms": min_ms, **compared}
    return found


def second_thread(call: Callable[[], object], alone: Sequence[Callable[[], object]], rounds: int) -> dict[str, float]:
    """A call on one thread and on two, and two that share nothing, one ``alone`` and both at once, in turn.

    On the wall, the least: what other processes take in between says nothing of threads. ``ratio`` is the
    speed-up of two threads over one, ``limit`` that of two threads that share nothing.
    """
    seconds: dict[str, list[float]] = {"one": [], "two": [], "alone": [], "both": []}
    with one_thread(), ThreadPoolExecutor(2) as pool:
        for _ in range(1 + rounds):
            for name, found in seconds.items():
                numba.set_num_threads(count := 2 if name == "two" else 1)
                with threadpool_limits(count):
                    begun = time.perf_counter()
                    if name in ("one", "two"):
                        call()
                    else:
                        list(pool.map(lambda each: each(), alone if name == "both" else alone[:1]))
                    found.append(time.perf_counter() - begun)
    one, two, single, both = (1e3 * min(found[1:]) for found in seconds.values())
    return {"one_ms": one, "two_ms": two, "ratio": one / two, "limit": 2 * single / both}
