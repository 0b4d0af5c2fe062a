"""Causal linear attention beside other packages, on one thread of the CPU, in float32 at batch size 1.

========================  ============================================================================================
product                   the kernels alone: features in, ``out`` and the gradients out
attention                 all of it: queries and keys in, elu + 1, the denominator
kernel step, step         one token of the recurrent form, without and with features and checks, called from Python
========================  ============================================================================================

`harness` says how time is measured; `bench_linear_peers` and, for a single token, `bench_linear_steps` what the others
are. ``jit plain`` is the loop of the paper in a few lines of Numba; ``jit float64`` the fast kernel in twice the
precision. ``multiply-adds alone`` are as many as ``jit`` makes, and nothing else: no kernel that makes them can be
faster on this processor.

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
from linattn_ref.experiments.benches import harness
from linattn_ref.experiments.benches.bench_linear_limit import multiply_adds
from linattn_ref.experiments.benches.bench_linear_peers import Inputs
from linattn_ref.experiments.benches.bench_linear_steps import STEP, STEP_KERNEL, steps
from linattn_ref.experiments.benches.harness import PER_TOKEN, TOLD, Call, Curve, per_token
from linattn_ref.experiments.measuring.timing import one_thread
from linattn_ref.experiments.publishing import style
from linattn_ref.kernels import jit, reference
from linattn_ref.kernels.jit.loops import causal_product as fast
from linattn_ref.kernels.jit.loops import causal_product_plain as plain
from linattn_ref.kernels.reference import causal_product as chunked

__all__ = ["Results", "compute", "draw", "table"]

READING = (
    "One thread, all in turn in one process; all find the memory for their results in the process, since new memory "
    "would cost as much again as `jit`'s forward pass. *product* is the causal product alone, from features; "
    "*attention* all of linear attention, with elu + 1 and the denominator. *step* is one token of the recurrent form, "
    "*kernel step* the same from features and without checks. `jit plain` is the paper's loop in a few lines of Numba, "
    "`jit float64` the fast kernel in float64. A step of `jit` works in the arrays of the state (`overwrite_state`); "
    "`jit, new state` leaves them alone. fast-transformers is the package of the paper's authors (with the `peers` "
    "extra in place, `pip install --no-build-isolation pytorch-fast-transformers`); *native* is the same source built "
    'with `CFLAGS="-O3 -march=native"`, and its folder renamed to `fast_transformers_native`. Told to have the 16 '
    "registers of 256 bits of a processor with AVX2 (`NUMBA_CPU_NAME=haswell`), `jit` reaches 86 % of the "
    "multiply-adds' own speed at N = 4096, forward and with the backward pass, where it reaches 72 and 75 % with "
    "AVX-512 (`records/bench_linear_avx2.json`)."
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

    Raises
    ------
    ValueError
        A count below 1.
    RuntimeError
        Two kernels disagree.
    """
    harness.check_counts(
        lengths=lengths, batches=batches, heads=heads, width=width, step_width=step_width, repeats=repeats
    )
    torch = harness.find("torch")
    packages = {} if torch is None else peers.find_packages()
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    with one_thread(torch), kept_memory():
        for length in lengths:
            inputs = Inputs(*rng.standard_normal((4, 1, heads, length, width)).astype(np.float32))
            for task, calls in _passes(inputs, torch, packages, compiled):
                harness.compare(task, {name: call() for name, call in calls.items()}, TOLERANCE)
                rows += harness.time(Row, (task, length), calls, repeats if length <= LONG else min(repeats, FEW))
        for batch in batches:
            recurrent = packages.get("fast-transformers")
            for task, steps_of in steps(batch, heads, step_width, torch, recurrent, rng):
                results = {name: [np.asarray(x) for x in step()] for name, step in steps_of.items()}
                harness.compare(task, results, TOLERANCE)
                often = {name: partial(_often, step) for name, step in steps_of.items()}
                rows += harness.time(Row, (task, batch), often, repeats, calls=STEPS)
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
            forward[name], both[name] = peers.torch_product(torch, form, phi)
    if peers.FLA in packages and inputs.v.shape[-2] % peers.FLA_ROWS == 0:
        form = partial(peers.fla_product, packages[peers.FLA])
        forward[peers.FLA], both[peers.FLA] = peers.torch_product(torch, form, phi)
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
    order = (*LOOKS, "jit float64")
    passes = harness.table(("task", "N"), [row for row in rows if not _is_step(row)], order)
    steps = harness.table(("task", "B"), [row for row in rows if _is_step(row)], order, unit=("µs", 1e3))
    few = f" ({FEW} beyond N = {LONG})" if results.repeats > FEW and any(row.size > LONG for row in rows) else ""
    setting = f"H = {results.heads}, C = M = {results.width} (steps: {results.step_width}), B = 1, float32, one thread"
    note = (
        f"{setting}, {results.repeats} rounds{few}. {TOLD} pytorch: the fastest of its forms. multiply-adds alone: as "
        "many as jit makes and nothing else; divided by it, a peer's ratio is the most that this arithmetic allows. "
        f"{harness.compared(results.versions, ('PyTorch', 'fast-transformers', peers.FLA))}"
    )
    return "\n".join([*passes, "", *steps, "", note])


def draw(results: Results) -> Figure:
    """Causal linear attention on one thread of a CPU, eight heads of 64, float32: time a token of the causal
    product against length, forward and with the backward pass. PyTorch: at each length the fastest of four forms.
    """
    rows = best_torch(results.rows)

    def curve(kernel: str, task: str) -> Curve:
        chosen = [row for row in rows if (row.task, row.kernel) == (task, kernel)]
        return Curve(kernel, *LOOKS[kernel], [per_token(row, row.size) for row in chosen])

    return harness.draw({task: [curve(kernel, task) for kernel in LOOKS] for task in (FORWARD, BOTH)}, PER_TOKEN)
