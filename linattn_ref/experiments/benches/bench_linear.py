"""Causal linear attention beside other packages, on one thread of the CPU, in float32 at batch size 1.

========================  ============================================================================================
product                   the kernels alone: features in, ``out`` and the gradients out
attention                 all of it: queries and keys in, elu + 1, the denominator
kernel step, step         one token of the recurrent form, without and with features and checks, called from Python
========================  ============================================================================================

As in `bench_softmax`, all run in this process in turn, on the same arrays, and results are compared before any time is
taken. A ratio is a kernel's CPU time over that of ``jit`` in the same round. What the others are is in
`bench_linear_peers` and, of a single token, in `bench_linear_steps`. ``jit plain`` is the loop of the paper in a few
lines of Numba; ``jit float64`` the fast kernel in twice the precision. ``multiply-adds alone`` are as many as ``jit``
makes, and nothing else: no kernel that makes them can be faster on this processor.

At these sizes a forward pass takes no longer than the system takes to find new memory for its result. That is not what
is compared: fast-transformers' kernels are given theirs, and the others get theirs from what is free in the process,
which on Linux is told to hand nothing back meanwhile (:func:`kept_memory`).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from linattn_ref.attention import linear
from linattn_ref.attention.arguments import Array
from linattn_ref.attention.feature_maps import elu_plus_one
from linattn_ref.experiments.benches import bench_linear_peers as peers
from linattn_ref.experiments.benches.bench_linear_limit import multiply_adds
from linattn_ref.experiments.benches.bench_linear_peers import Call, Inputs
from linattn_ref.experiments.benches.bench_linear_steps import STEP, STEP_KERNEL, steps
from linattn_ref.experiments.measuring.timing import against_jit, one_thread
from linattn_ref.experiments.publishing import style
from linattn_ref.kernels import jit, reference
from linattn_ref.kernels.jit import causal_product as fast
from linattn_ref.kernels.jit import causal_product_plain as plain
from linattn_ref.kernels.reference import causal_product as chunked

CAPTION = (
    "Causal linear attention on one thread of a CPU, eight heads of 64, float32: time a token of the causal product "
    "against length, forward and with the backward pass. PyTorch: at each length the fastest of four forms."
)
READING = (
    "One thread, all in turn in one process; all find the memory for their results in the process, since new memory "
    "would cost as much again as `jit`'s forward pass. *product* is the causal product alone, from features; "
    "*attention* all of linear attention, with elu + 1 and the denominator. *step* is one token of the recurrent form, "
    "*kernel step* the same from features and without checks. `jit plain` is the paper's loop in a few lines of Numba, "
    "`jit float64` the fast kernel in float64. A step of `jit` is bound to its arrays once (`linear.bind_step`); "
    "`jit, not bound` is the ordinary call. fast-transformers is the package of the paper's authors (with the `peers` "
    "extra in place, `pip install --no-build-isolation pytorch-fast-transformers`); *native* is the same source built "
    'with `CFLAGS="-O3 -march=native"`, and its folder renamed to `fast_transformers_native`.'
)
FORWARD, BOTH, ATTENTION = "product, forward", "product, forward + backward", "attention, forward + backward"
LONG, FEW = 16384, 3  # beyond this length no more than so many rounds: one takes some seconds
STEPS = 500  # timed together: one takes some microseconds, and the first of them finds other data in the caches
TOLERANCE = 1e-4  # of the largest number; some 1000 roundings of float32, for sums of up to some 10^4 terms
LOOKS = {
    "jit": (style.BLUE, "o-"),
    "jit plain": (style.SKY, "s-"),
    "reference": (style.GREY, "^-"),
    "pytorch": (style.VERMILLION, "D-"),
    "fast-transformers": (style.BLACK, "v-"),
    "fast-transformers native": (style.BLACK, "v--"),
    "flash-linear-attention": (style.GREEN, "x-"),
    "multiply-adds alone": (style.GREY, ":"),
}


class Row(NamedTuple):
    """One kernel at one task."""

    task: str  # FORWARD, BOTH, ATTENTION, STEP_KERNEL or STEP
    size: int  # N; of a step, B
    kernel: str
    median_ms: float  # CPU time
    min_ms: float
    ratio_median: float  # its time over jit's in the same round
    ratio_min: float


class Results(NamedTuple):
    heads: int
    width: int  # C = D = M
    step_width: int  # the same, of the steps
    repeats: int
    versions: dict[str, str]  # of the packages compared with
    rows: tuple[Row, ...]


def compute(
    *,
    lengths: Sequence[int] = (1024, 4096, 16384, 65536),
    batches: Sequence[int] = (1, 16),
    heads: int = 8,
    width: int = 64,
    step_width: int = 32,
    repeats: int = 7,
    compiled: bool = True,
    seed: int = 0,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Results:
    """Time ``jit`` beside the other kernels here and, where they are installed, PyTorch and fast-transformers.

    Parameters
    ----------
    lengths : sequence of int
        ``N = L``.
    batches : sequence of int
        Batch sizes of the steps.
    heads, width, step_width : int
        ``H``, ``D = M``, and ``D = M`` of the steps.
    repeats : int
        Rounds, after one that is not counted; at most ``FEW`` beyond the length ``LONG``.
    compiled : bool
        Whether to try ``torch.compile``: it needs a C++ compiler and some seconds a length.
    seed : int
    progress : callable
        Wraps the sequence of lengths, as ``tqdm.tqdm`` does.

    Raises
    ------
    ValueError
        A count below 1.
    RuntimeError
        Two kernels disagree.
    """
    given = {"lengths": lengths, "batches": batches, "heads": [heads], "width": [width]}
    for name, counts in {**given, "step_width": [step_width], "repeats": [repeats]}.items():
        for count in counts:
            if count < 1:
                raise ValueError(f"{name}: expected at least 1, got {count}")
    torch = peers.find_torch()
    packages = {} if torch is None else peers.find_packages()
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    with one_thread(torch), kept_memory():
        for length in progress(lengths):
            inputs = Inputs(*rng.standard_normal((4, 1, heads, length, width)).astype(np.float32))
            for task, calls in _passes(inputs, torch, packages, compiled):
                _compare(task, {name: call() for name, call in calls.items()})
                rows += _time(task, length, calls, repeats if length <= LONG else min(repeats, FEW))
        for batch in batches:
            recurrent = packages.get("fast-transformers")
            for task, steps_of, out in steps(batch, heads, step_width, torch, recurrent, rng):
                _compare(task, {name: step() or (out,) for name, step in steps_of.items()})
                often = {name: partial(_often, step) for name, step in steps_of.items()}
                rows += _time(task, batch, often, repeats, calls=STEPS)
    return Results(heads, width, step_width, repeats, peers.versions(torch, packages), tuple(rows))


# --- What is compared -----------------------------------------------------------------------------------------------


def _passes(
    inputs: Inputs, torch: Any, packages: Mapping[str, Any], compiled: bool
) -> Iterator[tuple[str, dict[str, Call]]]:
    """The three tasks over a whole sequence, each with its calls by name, ``jit`` first."""
    phi = inputs._replace(q=elu_plus_one.forward(inputs.q)[0], k=elu_plus_one.forward(inputs.k)[0])
    double = Inputs(*(x.astype(np.float64) for x in phi))
    forward: dict[str, Call] = {"jit": partial(_forward, fast, phi), "jit float64": partial(_forward, fast, double)}
    both: dict[str, Call] = {"jit": partial(_both, fast, phi), "jit float64": partial(_both, fast, double)}
    once = inputs.v.size * inputs.k.shape[-1]  # N C M, all heads
    forward["multiply-adds alone"] = partial(_limit, 2 * once, phi.v.dtype)
    both["multiply-adds alone"] = partial(_limit, 8 * once, phi.v.dtype)
    forward |= {"jit plain": partial(_forward_plain, phi), "reference": partial(_forward, chunked, phi)}
    both |= {"jit plain": partial(_both_plain, phi), "reference": partial(_both, chunked, phi)}
    attention: dict[str, Call] = {
        "jit": partial(_attention, jit, inputs),
        "reference": partial(_attention, reference, inputs),
    }
    if torch is not None:
        for name, form in peers.torch_forms(torch, compiled=compiled).items():
            forward[name] = partial(peers.torch_forward, torch, form, phi)
            both[name] = partial(peers.torch_both, torch, form, phi)
    if peers.FLA in packages and inputs.v.shape[-2] % peers.FLA_ROWS == 0:
        form = partial(peers.fla_product, packages[peers.FLA])
        forward[peers.FLA] = partial(peers.torch_forward, torch, form, phi)
        both[peers.FLA] = partial(peers.torch_both, torch, form, phi)
        attention[peers.FLA] = peers.fla_attention(torch, packages[peers.FLA], inputs)
    for name in filter(packages.__contains__, peers.FAST_TRANSFORMERS):
        package = packages[name]
        forward[name], both[name] = peers.fast_transformers_product(torch, package, phi)
        attention[name] = peers.fast_transformers_attention(torch, package, inputs)
    yield from ((FORWARD, forward), (BOTH, both), (ATTENTION, attention))


def _limit(count: int, dtype: Any) -> Sequence[Array]:
    multiply_adds(count, dtype)
    return ()


def _forward(kernel: Any, inputs: Inputs) -> Sequence[Array]:
    return (kernel.forward(*inputs[:3], None, None, None)[0],)


def _both(kernel: Any, inputs: Inputs) -> Sequence[Array]:
    q, k, v, d_out = inputs
    out, _ = kernel.forward(q, k, v, None, None, None)
    return out, *kernel.backward(d_out, None, q, k, v, None, None, None)[:3]


def _forward_plain(inputs: Inputs) -> Sequence[Array]:
    q, k, v, _ = inputs
    return (plain.forward_by_row(q, k, v, None)[0],)


def _both_plain(inputs: Inputs) -> Sequence[Array]:
    q, k, v, d_out = inputs
    out, _ = plain.forward_by_row(q, k, v, None)
    return out, *plain.backward_by_row(d_out, None, q, k, v, None)[:3]


def _attention(room: Any, inputs: Inputs) -> Sequence[Array]:
    *qkv, d_out = inputs
    out, saved = linear.forward(*qkv, causal=True, kernels=room)
    gradients = linear.backward(d_out, saved)
    return out, *gradients[:3]


def _often(step: Callable[[], object]) -> None:
    for _ in range(STEPS):
        step()


def _is_step(row: Row) -> bool:
    return row.task in (STEP, STEP_KERNEL)


@contextmanager
def kept_memory() -> Iterator[None]:
    """No memory goes back to the system, in a process with glibc's ``malloc``; elsewhere nothing changes."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        yield
        return
    trim_threshold, mmap_max = -1, -4  # malloc.h
    try:
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(mmap_max, 0)
        yield
    finally:
        mallopt(trim_threshold, 128 * 1024)  # its defaults
        mallopt(mmap_max, 65536)


# --- Comparing and timing -------------------------------------------------------------------------------------------


def _compare(task: str, results: Mapping[str, Sequence[Array]]) -> None:
    """All results against jit's."""
    for name, arrays in results.items():
        for what, got, want in zip(("out", "d_q", "d_k", "d_v"), arrays, results["jit"], strict=False):
            error = abs(np.asarray(got).reshape(want.shape) - want).max() / abs(want).max()
            if not error < TOLERANCE:
                raise RuntimeError(f"{task}: {name} and jit differ in {what} by {error:.1e} of its largest entry")


def _time(task: str, size: int, kernels: Mapping[str, Callable[[], object]], repeats: int, calls: int = 1) -> list[Row]:
    """A row for each kernel, which does its task ``calls`` times when it is called."""
    return [
        Row(task, size, name, median_ms / calls, min_ms / calls, *ratios)
        for name, (median_ms, min_ms, *ratios) in against_jit(kernels, repeats).items()
    ]


# --- Showing --------------------------------------------------------------------------------------------------------


def best_torch(rows: Iterable[Row]) -> list[Row]:
    """The rows with only the fastest of PyTorch's forms of each pass, called ``pytorch``; of steps all."""
    kept: list[Row] = []
    fastest: dict[tuple[str, int], Row] = {}
    for row in rows:
        setting = row.task, row.size
        if _is_step(row) or not row.kernel.startswith("pytorch"):
            kept.append(row)
        elif setting not in fastest or row.median_ms < fastest[setting].median_ms:
            fastest[setting] = row
    return [*kept, *(row._replace(kernel="pytorch") for row in fastest.values())]


def table(results: Results) -> str:
    """The comparison as two Markdown tables, of passes and of steps, a line a task and size; below, what they are."""
    rows = best_torch(results.rows)
    passes = _table("N", "ms", 1, [row for row in rows if not _is_step(row)])
    steps = _table("B", "µs", 1e3, [row for row in rows if _is_step(row)])
    compared = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    missing = [name for name in ("PyTorch", "fast-transformers", peers.FLA) if name not in results.versions]
    missing_line = f" Not installed, so not compared: {', '.join(missing)}." if missing else ""
    few = f" ({FEW} beyond N = {LONG})" if results.repeats > FEW and any(row.size > LONG for row in rows) else ""
    setting = f"H = {results.heads}, C = M = {results.width} (steps: {results.step_width}), B = 1, float32, one thread"
    note = (
        f"{setting}, {results.repeats} rounds{few}. jit: CPU time, median; the others: times jit's, median (least). "
        "pytorch: the fastest of its forms. multiply-adds alone: as many as jit makes and nothing else; divided by it, "
        f"a peer's ratio is the most that this arithmetic allows.{f' {compared}.' if compared else ''}{missing_line}"
    )
    return "\n".join([*passes, "", *steps, "", note])


def _table(size: str, unit: str, units: float, rows: list[Row]) -> list[str]:
    """The lines of a table; ``units`` to a millisecond."""
    names = dict.fromkeys([*LOOKS, "jit float64", *(row.kernel for row in rows)])
    others = [name for name in names if name != "jit" and any(row.kernel == name for row in rows)]
    by_setting: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        by_setting.setdefault(row[:2], {})[row.kernel] = row
    header = ["task", size, "jit", *others]
    lines = [f"| {' | '.join(header)} |", f"| --- | ---: | {' | '.join(['---:'] * (1 + len(others)))} |"]
    for (task, n), found in by_setting.items():
        time = f"{units * found['jit'].median_ms:.2f} {unit}"
        cells = (f"{row.ratio_median:.2f} ({row.ratio_min:.2f})" if row else "" for row in map(found.get, others))
        lines.append(f"| {' | '.join([task, str(n), time, *cells])} |")
    return lines


def draw(results: Results) -> Figure:
    """Time a token against length, forward and with the backward pass."""
    figure, axes = style.figure(1, 2, height=0.45, sharey=True)
    rows = best_torch(results.rows)
    lengths = sorted({row.size for row in rows if row.task == FORWARD})
    for axis, task in zip(axes, (FORWARD, BOTH), strict=True):
        for kernel, (colour, look) in LOOKS.items():
            points = [(row.size, 1e3 * row.median_ms / row.size) for row in rows if row[::2][:2] == (task, kernel)]
            if points:
                axis.plot(*zip(*points, strict=True), look, color=colour, label=kernel)
        axis.set(title=task, xlabel="N = L", xscale="log", yscale="log")
        axis.set_xticks(lengths, [str(n) for n in lengths])
        axis.minorticks_off()
        axis.yaxis.set_major_formatter("{x:g}")
    axes[0].set_ylabel("µs a token, all heads, one thread")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, handlelength=3.5)
    return figure
