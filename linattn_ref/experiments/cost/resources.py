"""The resource figure: time and memory against the length, forward and backward together.

CPU time on one thread, all methods in turn (`timing`), each length in a process of its own that keeps freed memory; the
most memory in use at once, each point in a process that hands freed memory back (`memory`), beside what a reader of
the code computes (`resource_methods`). A method that is quadratic in time or memory stops at a fixed length,
``Method.longest``. Nothing is extrapolated.

Softmax attention is there twice. ``dense`` keeps the matrix ``P`` and is what papers compare with; ``online`` gives the
same numbers without the matrix, by a kernel that is also more than twice as fast. Time is quadratic in both, memory in
the first alone. The online form needs half the memory of linear attention, which has the features of queries and keys
to keep, and the gradients of both.

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", Figure 1.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from linattn_ref.experiments.cost.resource_methods import (
    METHODS,
    REDUCED,
    Setting,
    measure_memory,
    measure_time,
    methods_at,
)
from linattn_ref.experiments.cost.resource_results import (
    MEMORY_FROM,
    Results,
    rounds_at,
    summarise,
)
from linattn_ref.experiments.measuring.measurements import measure_all
from linattn_ref.experiments.measuring.memory import HAND_BACK, KEEP, in_new_process
from linattn_ref.experiments.measuring.scaling import Crossing, Growth
from linattn_ref.experiments.publishing import labels, style
from linattn_ref.op import Array

__all__ = ["LENGTHS", "LOOK", "Results", "compute", "draw", "table"]

LENGTHS = tuple(2**i for i in range(6, 17))
M = style.MECHANISMS
# name in METHODS -> (label, colour, line)
LOOK = {
    "dense": ("softmax, matrix kept", M["softmax"], "o-"),
    "online": ("softmax, online", M["softmax online"], "s-"),
    "online_causal": ("softmax, online, causal", M["softmax online"], "s--"),
    "linformer": (f"Linformer, k = {REDUCED}", M["linformer"], "D-"),
    "linear": ("linear", M["linear"], "^-"),
    "linear_causal": ("linear, causal", M["linear"], "^--"),
    "lsh_1": ("lsh-1", M["reformer"], "v:"),
    "lsh_4": ("lsh-4", M["reformer"], "v--"),
    "lsh_8": ("lsh-8", M["reformer"], "v-"),
}
# A column of the figure each: its title, and the names of its lines
COLUMNS = {
    "all keys": {
        "dense": "softmax,\nmatrix",
        "online": "softmax,\nonline",
        "linformer": "Linformer",
        "linear": "linear",
    },
    "causal": {"online_causal": "softmax,\nonline", "linear_causal": "linear"},
    "hashing, rounds": {"online": "softmax,\nonline", "lsh_8": "LSH, 8", "lsh_4": "LSH, 4", "lsh_1": "LSH, 1"},
}


def compute(
    *,
    lengths: Sequence[int] = LENGTHS,
    rounds: int = 3,
    seed: int = 0,
    methods: Sequence[str] = tuple(METHODS),
    setting: Setting = Setting(),  # noqa: B008  # a tuple
    quick: bool = False,
    parts: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool = False,
) -> Results:
    """Time and memory of every method at every length that it goes to; 5 minutes of one core.

    Parameters
    ----------
    lengths : sequence of int
        ``N = L``, ascending; for each method at least two from 512 on, as it needs for an exponent.
    rounds : int
        At the long lengths; more at short ones, where a round takes no time.
    seed : int
        Of the inputs.
    methods : sequence of str
        Names in `METHODS`.
    setting : Setting
        Heads and width.
    quick : bool
        Two methods at two short lengths: for tests.
    parts, resume, progress
        As in `measure_all`.

    Raises
    ------
    ValueError
        Bad lengths, rounds or methods, or ``resume`` with other settings than those of ``parts``.
    ChildProcessError
        A measuring process failed, such as for lack of memory.
    """
    if quick:
        lengths, rounds, methods = (512, 1024), 1, ("online", "linear")
    _check(lengths, rounds, methods)
    settings = {"lengths": lengths, "rounds": rounds, "seed": seed, "methods": methods, **setting._asdict()}
    tasks = _tasks(lengths, rounds, methods, setting, seed)
    found = measure_all(tasks, settings, parts=parts, resume=resume, progress=progress)
    return summarise(found, lengths, rounds, methods, setting)


def _check(lengths: Sequence[int], rounds: int, methods: Sequence[str]) -> None:
    if list(lengths) != sorted(set(lengths)) or min(lengths, default=0) < 1:
        raise ValueError(f"lengths: expected positive ascending ones, got {lengths}")
    if rounds < 1:
        raise ValueError(f"rounds: expected at least 1, got {rounds}")
    unknown = [name for name in methods if name not in METHODS]
    if unknown or not methods:
        raise ValueError(f"methods: expected some of {', '.join(METHODS)}, got {', '.join(methods) or 'none'}")
    for name in methods:
        count = sum(name in methods_at(n, methods) for n in lengths if n >= MEMORY_FROM)
        if count < 2:
            end = METHODS[name].longest
            raise ValueError(
                f"lengths: {name} needs two from {MEMORY_FROM} {f'to {end}' if end else 'on'}, got {count}"
            )


def _tasks(
    lengths: Sequence[int], rounds: int, methods: Sequence[str], setting: Setting, seed: int
) -> dict[str, Callable[[], Array]]:
    """What is measured, by the name of its file: ``time-N (methods, rounds)`` and ``memory-method-N (2,)``."""
    tasks: dict[str, Callable[[], Array]] = {}
    for n in lengths:
        tasks[f"time-{n}"] = partial(
            in_new_process, measure_time, methods_at(n, methods), n, rounds_at(n, rounds), setting, seed, malloc=KEEP
        )
    for n in lengths:
        for name in methods_at(n, methods) if n >= MEMORY_FROM else ():
            tasks[f"memory-{name}-{n}"] = partial(
                in_new_process, measure_memory, name, n, setting, seed, malloc=HAND_BACK
            )
    return tasks


# --- The figure and the table ---------------------------------------------------------------------------------------


def draw(results: Results) -> Figure:
    """Forward and backward pass of attention, 8 heads of width 64, float32, one sequence. Above: CPU time on one
    thread, with the exponent of N fitted to the longer half of a curve; a ring is where a method gets faster than
    online softmax attention. Below: the most memory in use at once beyond the inputs, over the length: a level line
    is linear memory. Points are measured, each in a process of its own, lines are computed from the code. Softmax
    attention stops where a pass takes seconds or gigabytes; nothing is extrapolated. Its time is always quadratic,
    its memory only where the matrix is kept: online it needs less of it than the linear methods. The matrix, and
    linear without a mask, are NumPy; the others have Numba kernels. Linformer with k = 256. LSH: Reformer with so
    many hash rounds, 64 buckets and chunks of 32.
    """
    figure, axes = style.figure(2, len(COLUMNS), height=0.66, sharex=True, sharey="row")
    for (above, below), title in zip(axes.T, COLUMNS, strict=True):
        above.set(title=title, yscale="log")
        below.set(yscale="log", xlabel="length N (tokens)")
        below.set_xscale("log", base=2)
    axes[0, 0].set_ylabel("CPU time, one thread (s)")
    axes[1, 0].set_ylabel("memory over length\n(KiB a token)")
    for (above, below), names in zip(axes.T, COLUMNS.values(), strict=True):
        shown = {name: label for name, label in names.items() if name in results.curves}
        _draw_time(above, results, shown)
        _draw_memory(below, results, shown)
    axes[0, 0].text(
        0.97, 0.04, "ring: faster\nthan online", transform=axes[0, 0].transAxes, ha="right", fontsize="small"
    )
    return figure


def _draw_time(axis: Axes, results: Results, names: Mapping[str, str]) -> None:
    lines, written = [], []
    for name, label in names.items():
        curve = results.curves[name]
        lines += axis.plot(curve.lengths, curve.seconds, LOOK[name][2], color=LOOK[name][1])
        written.append(f"{label} {_exponent(curve.time_growth)}")
    _mark_crossings(axis, results, names)
    axis.set_xticks(results.lengths[:: 1 + len(results.lengths) // 5])
    axis.minorticks_off()
    axis.set_ylim(5e-4, 30)
    labels.at_ends(axis, lines, written, rows=2)


def _draw_memory(axis: Axes, results: Results, names: Mapping[str, str]) -> None:
    lines = []
    for name in names:
        curve, (_, colour, look) = results.curves[name], LOOK[name]
        n = np.array(curve.memory_lengths)
        lines += axis.plot(n, np.array(curve.peak_formula) / n / 1024, look[1:], color=colour)
        axis.plot(n, np.array(curve.peak) / n / 1024, look[0], color=colour)
    axis.set_ylim(4, 600)
    axis.set_yticks([5, 10, 20, 50, 100, 200, 500], ["5", "10", "20", "50", "100", "200", "500"])
    axis.minorticks_off()
    one = {"lsh_8": "LSH, any", "lsh_4": "", "lsh_1": ""}  # the same memory
    labels.at_ends(axis, lines, [one.get(name, label) for name, label in names.items()], rows=2)


def _exponent(g: Growth) -> str:
    return f"$N^{{{g.exponent:.2f}}}$"


def _mark_crossings(axis: Axes, results: Results, names: Mapping[str, str]) -> None:
    """A ring on a curve where it falls below that of online softmax attention."""
    size = 2.4 * matplotlib.rcParams["lines.markersize"]
    for pair in results.pairs:
        if pair.faster.length is not None and pair.high.startswith("online") and {pair.low, pair.high} <= set(names):
            curve = results.curves[pair.low]
            seconds = np.exp(np.interp(np.log(pair.faster.length), np.log(curve.lengths), np.log(curve.seconds)))
            colour = LOOK[pair.low][1]
            axis.plot(pair.faster.length, seconds, "o", color=colour, markersize=size, fillstyle="none", zorder=4)


def table(results: Results) -> str:
    """The numbers as Markdown: time and memory by length, exponents, and where the curves cross."""
    curves = results.curves
    milliseconds = {name: [f"{1e3 * s:.3g}" for s in c.seconds] for name, c in curves.items()}
    mebibytes = {name: [f"{p / 2**20:.3g}" for p in c.peak] for name, c in curves.items()}
    parts = [
        "CPU time of one thread, ms, forward and backward:\n",
        *_by_length(milliseconds, {name: c.lengths for name, c in curves.items()}),
        "\nMost memory in use at once beyond the inputs, MiB:\n",
        *_by_length(mebibytes, {name: c.memory_lengths for name, c in curves.items()}),
        "\n| grows as | time | memory |\n| --- | --- | --- |",
        *(f"| {LOOK[name][0]} | {_power(c.time_growth)} | {_power(c.memory_growth)} |" for name, c in curves.items()),
        "\n| | faster from N = | smaller from N = |\n| --- | --- | --- |",
        *(
            f"| {LOOK[p.low][0]} against {LOOK[p.high][0]} | {_where(p.faster)} | {_where(p.smaller)} |"
            for p in results.pairs
        ),
    ]
    return "\n".join(parts)


def _by_length(cells: Mapping[str, Sequence[str]], lengths: Mapping[str, Sequence[int]]) -> list[str]:
    """A line a length, a column a method; empty where a method was not run."""
    columns = {name: dict(zip(lengths[name], cells[name], strict=True)) for name in cells}
    lines = [f"| N = L | {' | '.join(LOOK[name][0] for name in columns)} |", "|" + " ---: |" * (1 + len(columns))]
    for n in sorted({n for column in columns.values() for n in column}):
        lines.append(f"| {n} | {' | '.join(column.get(n, '') for column in columns.values())} |")
    return lines


def _power(g: Growth) -> str:
    return f"N^{g.exponent:.2f} (N = {g.shortest} to {g.longest}; step by step {g.least:.2f} to {g.greatest:.2f})"


def _where(c: Crossing) -> str:
    if c.before is None:
        return f"not up to {c.after}"
    if c.length is None:
        return f"{c.before} or less"
    return f"{c.length:.0f} (measured: after {c.after}, at {c.before})"
