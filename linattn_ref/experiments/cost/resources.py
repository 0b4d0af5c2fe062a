"""The resource figure: time and memory against the length, forward and backward together.

CPU time on one thread, all methods of a length in turn, and the most memory in use at once (`points`), next to what a
reader of the code computes (`resource_methods`). A method that is quadratic in time or memory stops at a fixed length,
``Method.longest``. Nothing is extrapolated.

Softmax attention is there twice. ``dense`` keeps the matrix ``P`` and is what papers compare with; ``online`` gives the
same numbers without the matrix, by a kernel that is also faster at every length. Time is quadratic in both, memory in
the first alone. The online form needs less memory than linear attention, which has the features of queries and keys to
keep, and the gradients of both.

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", Figure 1.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np

from linattn_ref.experiments.cost.resource_methods import METHODS, REDUCED, Setting, methods_at, prepared
from linattn_ref.experiments.measuring.points import Group, Points, check_lengths, measure_points
from linattn_ref.experiments.measuring.scaling import crossing, growth
from linattn_ref.experiments.publishing.kit import Axes, Figure, Ints, Results, labels, markdown, style

__all__ = ["LENGTHS", "LOOK", "PAIRS", "compute", "draw", "summarise", "table"]

LENGTHS = tuple(2**i for i in range(6, 17))
MEMORY_FROM = 2**9  # below, what a pass needs is lost among the pages that a process has anyway
WARM_UP = 256  # tokens
# Which is below which from some length on?
PAIRS = (
    ("dense", "linear"),
    ("online", "linear"),
    ("online_causal", "linear_causal"),
    ("dense", "linformer"),
    ("online", "linformer"),
    *(("online", f"lsh_{rounds}") for rounds in (1, 4, 8)),
)
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


QUICK = {"lengths": (512, 1024), "rounds": 1, "methods": ("online", "linear", "online_causal", "linear_causal")}


def compute(
    *,
    lengths: Ints = LENGTHS,
    rounds: int = 3,
    seed: int = 0,
    methods: Sequence[str] = tuple(METHODS),
    setting: Setting = Setting(),  # noqa: B008  # a tuple
    **where: Any,
) -> Results:
    """Measure time and memory of attention against its length (Transformers are RNNs, Figure 1).

    CPU time on one thread, and the most memory in use at once, measured in a process for each point. Each point is kept
    as it comes.

    Parameters
    ----------
    lengths : sequence of int
        ``N = L``, ascending, by default 64 to 65536; for each method two from 512 on, as it needs for an exponent.
    rounds : int
        At the long lengths; more at short ones, where a round takes no time.
    seed : int
        Of the inputs.
    methods : sequence of str
        Such as online linear_causal, by default all; a wrong one lists them.
    setting : Setting
        Heads and width.
    **where
        ``parts``, ``resume`` and ``progress``, as in `measure_all`.

    Raises
    ------
    ValueError
        Bad lengths, rounds or methods, or ``resume`` with other settings than those of ``parts``.
    ChildProcessError
        A measuring process failed, such as for lack of memory.
    """
    check_lengths(lengths, rounds)
    if not methods or not {*methods} <= {*METHODS}:
        raise ValueError(f"methods: expected some of {', '.join(METHODS)}, got {', '.join(methods) or 'none'}")
    for name in methods:
        count = sum(name in methods_at(n, methods) for n in lengths if n >= MEMORY_FROM)
        if count < 2:
            reach = f"to {METHODS[name].longest}" if METHODS[name].longest else "on"
            raise ValueError(f"lengths: {name} needs two from {MEMORY_FROM} {reach}, got {count}")
    settings = {"lengths": lengths, "rounds": rounds, "seed": seed, "methods": methods, **setting._asdict()}
    groups = {
        str(n): Group(methods_at(n, methods), n, rounds_at(n, rounds), (setting, seed), n >= MEMORY_FROM)
        for n in lengths
    }
    return summarise(measure_points(prepared, groups, settings, warm_up=WARM_UP, **where), lengths, rounds, setting)


def rounds_at(n: int, least: int) -> int:
    """More rounds where one takes no time."""
    return max(least, min(31, 2**15 // n))


def summarise(found: Points, lengths: Ints, rounds: int, setting: Setting) -> Results:
    """From what was measured to the numbers of the figure."""
    names = dict.fromkeys(name for of_length in found.seconds.values() for name in of_length)
    curves = {name: _curve(name, found, setting) for name in METHODS if name in names}
    times = {name: dict(zip(c.lengths, c.seconds, strict=True)) for name, c in curves.items()}
    peaks = {name: dict(zip(c.memory_lengths, c.peak, strict=True)) for name, c in curves.items()}
    return Results(
        setting=setting,
        dtype="float32",
        lengths=tuple(lengths),  # (T,)
        rounds=tuple(rounds_at(n, rounds) for n in lengths),  # (T,), for each length
        curves=curves,
        pairs=tuple(
            Results(
                low=low, high=high, faster=crossing(times[high], times[low]), smaller=crossing(peaks[high], peaks[low])
            )
            for high, low in PAIRS
            if {high, low} <= set(curves)
        ),
    )


def _curve(name: str, found: Points, setting: Setting) -> Results:
    rows = {int(n): seconds[name] for n, seconds in found.seconds.items() if name in seconds}
    memory = {int(n): memory[name] for n, memory in found.memory.items() if name in memory}
    seconds, peak = [float(np.median(row)) for row in rows.values()], [int(each[0]) for each in memory.values()]
    return Results(
        lengths=tuple(rows),  # (T,)
        seconds=tuple(seconds),  # (T,), CPU time, the median of the rounds
        least_seconds=tuple(float(row.min()) for row in rows.values()),  # (T,)
        time_growth=growth([*rows], seconds),
        memory_lengths=tuple(memory),  # (U,)
        peak=tuple(peak),  # (U,), bytes in use at once, measured
        peak_formula=tuple(4 * METHODS[name].peak(n, setting) for n in memory),  # (U,)
        memory_growth=growth([*memory], peak),
        stops_at=METHODS[name].longest,  # longer ones are not run; None: this method can go on
    )


# --- The figure and the table ---------------------------------------------------------------------------------------


def draw(results: Results) -> Figure:
    """Forward and backward pass of attention, 8 heads of width 64, float32, one sequence. Above: CPU time on one
    thread, with the exponent of N fitted to the longer half of a curve; a ring is where a method gets faster than
    online softmax attention. Below: the most memory in use at once beyond the inputs, over the length: a level line is
    linear memory. Points are measured, each in a process of its own, lines are computed from the code. Softmax
    attention stops where a pass takes seconds or gigabytes; nothing is extrapolated. Its time is always quadratic, its
    memory only where the matrix is kept: online it needs less of it than the linear methods. The matrix is NumPy's, as
    are the sums of linear without a mask; all else has Numba kernels. Linformer with k = 256. LSH: Reformer with so
    many hash rounds, 64 buckets and chunks of 32.
    """
    figure, axes = style.figure(2, len(COLUMNS), height=0.66, sharex=True, sharey="row")
    axes[0, 0].set_ylabel("CPU time, one thread (s)")
    axes[1, 0].set_ylabel("memory over length\n(KiB per token)")
    for (above, below), (title, names) in zip(axes.T, COLUMNS.items(), strict=True):
        above.set(title=title, yscale="log")
        below.set(yscale="log", xlabel="length N (tokens)")
        below.set_xscale("log", base=2)
        shown = {name: label for name, label in names.items() if name in results.curves}
        _draw_time(above, results, shown)
        _draw_memory(below, results, shown)
    axes[0, 0].text(0.97, 0.04, "ring: faster\nthan online", transform=axes[0, 0].transAxes, ha="right", size="small")
    return figure


def _draw_time(axis: Axes, results: Results, names: Mapping[str, str]) -> None:
    for name, label in names.items():
        curve = results.curves[name]
        told = f"{label} $N^{{{curve.time_growth.exponent:.2f}}}$"
        axis.plot(curve.lengths, curve.seconds, LOOK[name][2], color=LOOK[name][1], label=told)

    # A ring on a curve where it falls below that of online softmax attention
    size = 2.4 * matplotlib.rcParams["lines.markersize"]
    for pair in results.pairs:
        if pair.faster.length is not None and pair.high.startswith("online") and {pair.low, pair.high} <= set(names):
            curve = results.curves[pair.low]
            seconds = np.exp(np.interp(np.log(pair.faster.length), np.log(curve.lengths), np.log(curve.seconds)))
            colour = LOOK[pair.low][1]
            axis.plot(pair.faster.length, seconds, "o", color=colour, markersize=size, fillstyle="none", zorder=4)

    axis.set_xticks(results.lengths[:: 1 + len(results.lengths) // 5])
    axis.minorticks_off()
    axis.set_ylim(5e-4, 30)
    labels.at_ends(axis, rows=2)


def _draw_memory(axis: Axes, results: Results, names: Mapping[str, str]) -> None:
    one = {"lsh_8": "LSH, any", "lsh_4": "", "lsh_1": ""}  # the same memory
    for name, label in names.items():
        curve, (_, colour, look) = results.curves[name], LOOK[name]
        n = np.array(curve.memory_lengths)
        axis.plot(n, np.array(curve.peak_formula) / n / 1024, look[1:], color=colour, label=one.get(name, label))
        axis.plot(n, np.array(curve.peak) / n / 1024, look[0], color=colour)
    axis.set_ylim(4, 600)
    labels.ticks(axis, [5, 10, 20, 50, 100, 200, 500], along="y")
    labels.at_ends(axis, rows=2)


def table(results: Results) -> str:
    """The numbers as Markdown: time and memory by length, exponents, and where the curves cross."""
    curves = results.curves
    seconds = {name: dict(zip(c.lengths, c.seconds, strict=True)) for name, c in curves.items()}
    peaks = {name: dict(zip(c.memory_lengths, c.peak, strict=True)) for name, c in curves.items()}
    powers = [(LOOK[name][0], _power(c.time_growth), _power(c.memory_growth)) for name, c in curves.items()]
    meet = [(f"{LOOK[p.low][0]} against {LOOK[p.high][0]}", _where(p.faster), _where(p.smaller)) for p in results.pairs]
    parts = [
        "CPU time of one thread, ms, forward and backward:\n",
        *_by_length(seconds, 1e3),
        "\nMost memory in use at once beyond the inputs, MiB:\n",
        *_by_length(peaks, 2**-20),
        *("", *markdown.table(("grows as", "time", "memory"), powers, "l")),
        *("", *markdown.table(("", "faster from N =", "smaller from N ="), meet, "l")),
    ]
    return "\n".join(parts)


def _by_length(columns: Mapping[str, Mapping[int, float]], factor: float) -> list[str]:
    """A line per length, a column per method; empty where a method was not run."""
    lengths = sorted({n for column in columns.values() for n in column})
    rows = [(n, *(f"{factor * of[n]:.3g}" if n in of else "" for of in columns.values())) for n in lengths]
    return markdown.table(("N = L", *(LOOK[name][0] for name in columns)), rows, "r")


def _power(g: Any) -> str:
    return f"N^{g.exponent:.2f} (N = {g.shortest} to {g.longest}; step by step {g.least:.2f} to {g.greatest:.2f})"


def _where(c: Any) -> str:
    if c.before is None:
        return f"not up to {c.after}"
    if c.length is None:
        return f"{c.before} or less"
    return f"{c.length:.0f} (measured: after {c.after}, at {c.before})"
