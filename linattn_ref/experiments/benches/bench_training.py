"""A step of training beside PyTorch's eager mode: forward, backward and Adam, float32, on the same numbers.

The network is `linattn_ref.models.causal`, on two sequences of 784 tokens, as for images of digits. Each network and
mechanism is measured in a process of its own, in which freed memory is kept for the next array: PyTorch's better
setting, and of no use to an arena. There, all steps are taken in turn (`harness`), and beside them the matrix products
that each cannot do without, alone, by the library that it calls: OpenBLAS under NumPy, MKL under PyTorch.

Before anything is timed, the losses of three steps are compared: they are those of the same gradients.

``jit, recomputed`` computes the hidden units again in the backward pass (`causal.Model.recompute`): a ninth more
products, for memory. Of the larger networks memory is measured: the most that building the network and three steps take
beyond what there was before, parameters and the optimiser's state among it, freed memory handed back. What a process
has beside (the libraries, compiled code) was there before, on either side, for a network of one layer has run.

The larger networks are run with two threads too, against one by the clock on the wall. What two threads could do at
best, on a machine that is shared, is measured beside it: the step's products, once on one thread, and once on each of
two at the same time. README has the share of it. What stood in the way of two threads was OpenMP's, which turned in
circles while OpenBLAS's worked (`linattn_ref.kernels.jit.loops.threads`). NumPy's own passes over the memory still
have one thread: residual sums, products with a slope, the gradients of heads that are put side by side.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numba
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from linattn_ref.experiments.benches import bench_linear_peers, bench_training_own, bench_training_peers, harness
from linattn_ref.experiments.benches.harness import TOLD
from linattn_ref.experiments.measuring.memory import HAND_BACK, KEEP, in_new_process, peak_resident
from linattn_ref.experiments.measuring.timing import one_thread
from linattn_ref.experiments.publishing import style
from linattn_ref.models import causal

__all__ = ["Results", "compute", "draw", "table"]

BATCH, LENGTH, TOKENS, RATE = 2, 784, 256, 1e-3
OURS, THEIRS, RECOMPUTED = "its products", "PyTorch's products", "jit, recomputed"
COLOURS = {
    "jit": style.BLUE,
    RECOMPUTED: style.BLUE,
    OURS: style.SKY,
    "pytorch": style.VERMILLION,
    "pytorch, at once": style.VERMILLION,
    "pytorch, loop": style.ORANGE,
    "fast-transformers": style.GREEN,
    THEIRS: style.GREY,
}


class Setting(NamedTuple):
    layers: int
    width: int  # E
    heads: int
    attention: str  # "linear" or "softmax"


SETTINGS = (
    Setting(8, 256, 8, "linear"),
    Setting(8, 256, 8, "softmax"),
    Setting(4, 128, 4, "linear"),
    Setting(4, 128, 4, "softmax"),
)


class Row(NamedTuple):
    """One step, or its products, at one setting."""

    layers: int
    width: int
    heads: int
    attention: str
    kernel: str
    median_ms: float  # CPU time
    min_ms: float
    ratio_median: float  # its time over jit's in the same round
    ratio_min: float


class Threads(NamedTuple):
    """A step of this package on one thread and on two."""

    layers: int
    attention: str
    one_ms: float  # on the wall, the least: what other processes take in between says nothing of threads
    two_ms: float
    ratio: float  # one over two
    limit: float  # what two processors do at once that share nothing, over one: the step's products, each its own


class Memory(NamedTuple):
    layers: int
    attention: str
    kernel: str
    megabytes: float


class Results(NamedTuple):
    repeats: int
    versions: dict[str, str]
    rows: tuple[Row, ...]
    threads: tuple[Threads, ...]  # none where there is one thread only
    memory: tuple[Memory, ...]


def compute(*, repeats: int = 5, seed: int = 0) -> Results:
    """Time a step of `SETTINGS`, beside PyTorch's where that is installed.

    Parameters
    ----------
    repeats : int
        Rounds of timing, after one that is not counted.
    seed : int

    Raises
    ------
    ValueError
        A count below 1.
    ChildProcessError
        The losses of two steps differ, among others.
    """
    harness.check_counts(repeats=repeats)
    torch, rows, threads, memory = harness.find("torch"), [], [], []
    for setting in SETTINGS:
        rows += in_new_process(times, setting, repeats, seed, malloc=KEEP)
        if setting.layers < SETTINGS[0].layers:
            continue
        if numba.config.NUMBA_NUM_THREADS > 1:
            threads.append(in_new_process(threads_against_one, setting, repeats, seed, malloc=KEEP))
        for name in {row.kernel for row in rows if row[: len(setting)] == setting} - {OURS, THEIRS}:
            peak = in_new_process(peak_of, name, setting, seed, malloc=HAND_BACK)
            memory.append(Memory(setting.layers, setting.attention, name, peak / 1e6))
    versions = bench_linear_peers.versions(torch, bench_linear_peers.find_fast_transformers() if torch else {})
    return Results(repeats, versions, tuple(rows), tuple(threads), tuple(sorted(memory, key=_place)))


# --- Calls ----------------------------------------------------------------------------------------------------------


def steps(setting: Setting, seed: int, torch: Any) -> dict[str, Callable[[], Callable[[], float]]]:
    """By name, what makes each step."""
    params, text = _start(setting, seed)
    given = (params, setting.heads, text, RATE)
    found: dict[str, Any] = {
        "jit": partial(bench_training_own.training_step, setting.attention, *given),
        RECOMPUTED: partial(bench_training_own.training_step, setting.attention, *given, recompute=True),
    }
    if torch is not None:
        attentions = bench_training_peers.attention_by_name(
            torch, setting.attention, bench_linear_peers.find_fast_transformers()
        )
        for name, attend in attentions.items():
            found[name] = partial(bench_training_peers.training_step, torch, attend, *given)
    return found


def _start(setting: Setting, seed: int) -> tuple[causal.Params, NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    params = causal.draw(
        rng,
        tokens=TOKENS,
        places=LENGTH,
        width=setting.width,
        hidden=4 * setting.width,
        layers=setting.layers,
        dtype=np.float32,
    )
    return params, rng.integers(0, TOKENS, (BATCH, LENGTH + 1))


def _sizes(setting: Setting) -> list[tuple[int, int]]:
    """Of all matrices."""
    e = setting.width
    return [(e, 3 * e), (e, e), (e, 4 * e), (4 * e, e)] * setting.layers + [(e, TOKENS)]


# --- In a process of its own ----------------------------------------------------------------------------------------


def times(setting: Setting, repeats: int, seed: int) -> list[Row]:
    """The rows of a setting, after the losses have been compared."""
    torch = harness.find("torch")
    with one_thread(torch):
        calls: dict[str, Callable[[], Any]] = {name: make() for name, make in steps(setting, seed, torch).items()}
        losses = {name: (np.array([call() for _ in range(3)]),) for name, call in calls.items()}
        harness.compare(str(setting), losses, 1e-4, outputs=("losses",))
        calls[OURS] = bench_training_own.products(BATCH * LENGTH, _sizes(setting))
        if torch is not None:
            calls[THEIRS] = bench_training_peers.products(torch, BATCH * LENGTH, _sizes(setting))
        return harness.time(Row, setting, calls, repeats)


def threads_against_one(setting: Setting, repeats: int, seed: int) -> Threads:
    """A step on one thread and on two, and its products alone, once and twice at once, in turn."""
    step = steps(setting, seed, None)["jit"]()
    calls = [bench_training_own.products(BATCH * LENGTH, _sizes(setting)) for _ in range(2)]
    seconds: dict[str, list[float]] = {"one": [], "two": [], "alone": [], "both": []}
    with ThreadPoolExecutor(2) as pool:
        for _ in range(1 + repeats):
            for name, found in seconds.items():
                count = 2 if name == "two" else 1
                numba.set_num_threads(count)
                with threadpool_limits(count):
                    begun = time.perf_counter()
                    if name in ("one", "two"):
                        step()
                    else:
                        list(pool.map(lambda call: call(), calls if name == "both" else calls[:1]))
                    found.append(time.perf_counter() - begun)
    one, two, alone, both = (1e3 * min(found[1:]) for found in seconds.values())
    return Threads(setting.layers, setting.attention, one, two, one / two, 2 * alone / both)


def peak_of(name: str, setting: Setting, seed: int) -> int:
    """Bytes that a network and three of its steps take, by the name of a row."""
    torch = harness.find("torch")

    def build_and_run(layers: int) -> None:
        one = setting._replace(layers=layers)
        step = steps(one, seed, torch)[name]()
        for _ in range(3):
            step()

    with one_thread(torch):
        build_and_run(1)  # what happens once only
        return peak_resident(partial(build_and_run, setting.layers))


# --- Showing --------------------------------------------------------------------------------------------------------


def _place(memory: Memory) -> tuple[int, str, int]:
    return -memory.layers, memory.attention, list(COLOURS).index(memory.kernel)


def table(results: Results) -> str:
    """Times, threads and memory as Markdown, and below them what stands there."""
    lines = harness.table(
        ("layers", "E", "attention"), results.rows, COLOURS, cells=lambda cells: (cells[0], cells[1], cells[3])
    )
    note = (
        f"B = {BATCH}, N = {LENGTH}, {TOKENS} tokens, float32, one thread, {results.repeats} rounds. {TOLD} "
        f"{harness.compared(results.versions, ['PyTorch', 'fast-transformers'])}"
    )
    threads = [
        f"{one.layers} layers, {one.attention}: two threads {one.ratio:.2f} times as fast as one, where the products "
        f"alone, on each of two threads, are {one.limit:.2f} times as many as on one"
        for one in results.threads
    ]
    peaks = ["| layers | attention | step | peak, MB |", "| ---: | --- | --- | ---: |"]
    peaks += [f"| {m.layers} | {m.attention} | {m.kernel} | {m.megabytes:.0f} |" for m in results.memory]
    return "\n".join([*lines, "", note, "", "; ".join(threads), "", *peaks])


def draw(results: Results) -> Figure:
    """A step of training on one thread of a CPU, over the time of this package's: a causal transformer, two
    sequences of 784 tokens, feed-forward layers four times as wide, float32. PyTorch in eager mode; the matrix
    products of each alone are what its step cannot be faster than.
    """
    figure, axes = style.figure(1, len(SETTINGS), height=0.42, sharex=True)
    for axis, setting in zip(axes, SETTINGS, strict=True):
        rows = [row for name in reversed(COLOURS) for row in results.rows if row[:5] == (*setting, name)]
        names = [row.kernel.replace(", ", ",\n").replace("'s ", "'s\n") for row in rows]
        bars = axis.barh(names, [row.ratio_median for row in rows], color=[COLOURS[row.kernel] for row in rows])
        axis.bar_label(bars, fmt="%.2f", padding=2)
        axis.set(title=f"{setting.layers} layers,\n{setting.width}, {setting.attention}", xlabel="time over jit's")
        axis.margins(x=0.3)
    return figure
