"""The numbers of the resource figure: from measurements by task to a curve a method, and where curves cross."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from linattn_ref.experiments.cost.resource_methods import METHODS, Setting, methods_at
from linattn_ref.experiments.measuring.scaling import Crossing, Growth, crossing, growth
from linattn_ref.op import Array

__all__ = ["MEMORY_FROM", "PAIRS", "Results", "rounds_at", "summarise"]

MEMORY_FROM = 2**9  # below, what a pass needs is lost among the pages that a process has anyway
# Which is below which from some length on?
PAIRS = (
    ("dense", "linear"),
    ("online", "linear"),
    ("online_causal", "linear_causal"),
    ("dense", "linformer"),
    ("online", "linformer"),
    ("online", "lsh_1"),
    ("online", "lsh_4"),
    ("online", "lsh_8"),
)


class Curve(NamedTuple):
    """One method."""

    lengths: tuple[int, ...]  # (T,)
    seconds: tuple[float, ...]  # (T,), CPU time, the median of the rounds
    least_seconds: tuple[float, ...]  # (T,)
    time_growth: Growth
    memory_lengths: tuple[int, ...]  # (U,)
    peak: tuple[int, ...]  # (U,), bytes in use at once, measured
    peak_formula: tuple[int, ...]  # (U,)
    kept: tuple[int, ...]  # (U,), bytes kept by forward, counted
    memory_growth: Growth
    stops_at: int | None  # longer ones are not run; None: this method can go on


class Pair(NamedTuple):
    """A method that grows with the length beside one that grows with its square."""

    low: str
    high: str
    faster: Crossing
    smaller: Crossing


class Results(NamedTuple):
    setting: Setting
    dtype: str
    lengths: tuple[int, ...]  # (T,)
    rounds: tuple[int, ...]  # (T,), for each length
    curves: dict[str, Curve]
    pairs: tuple[Pair, ...]


def rounds_at(n: int, least: int) -> int:
    """More rounds where one takes no time."""
    return max(least, min(31, 2**15 // n))


def summarise(
    found: Mapping[str, Array], lengths: Sequence[int], rounds: int, methods: Sequence[str], setting: Setting
) -> Results:
    """From the measurements by task to the numbers of the figure."""
    curves = {name: _curve(name, found, lengths, methods, setting) for name in methods}
    times = {name: dict(zip(c.lengths, c.seconds, strict=True)) for name, c in curves.items()}
    peaks = {name: dict(zip(c.memory_lengths, c.peak, strict=True)) for name, c in curves.items()}
    pairs = [(high, low) for high, low in PAIRS if {high, low} <= set(methods)]
    return Results(
        setting,
        "float32",
        tuple(lengths),
        tuple(rounds_at(n, rounds) for n in lengths),
        curves,
        tuple(
            Pair(low, high, crossing(times[high], times[low]), crossing(peaks[high], peaks[low])) for high, low in pairs
        ),
    )


def _curve(
    name: str, found: Mapping[str, Array], lengths: Sequence[int], methods: Sequence[str], setting: Setting
) -> Curve:
    mine = [n for n in lengths if name in methods_at(n, methods)]
    long = [n for n in mine if n >= MEMORY_FROM]
    rows = [found[f"time-{n}"][methods_at(n, methods).index(name)] for n in mine]
    seconds = [float(np.median(row)) for row in rows]
    peak, kept = ([int(found[f"memory-{name}-{n}"][i]) for n in long] for i in (0, 1))
    return Curve(
        tuple(mine),
        tuple(seconds),
        tuple(float(row.min()) for row in rows),
        growth(mine, seconds),
        tuple(long),
        tuple(peak),
        tuple(4 * METHODS[name].peak(n, setting) for n in long),
        tuple(kept),
        growth(long, peak),
        METHODS[name].longest,
    )
