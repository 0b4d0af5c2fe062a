"""The softmax kernels beside PyTorch's ``scaled_dot_product_attention``, on one thread of the CPU.

Everything runs in this process, on the same arrays, in turn: one call of each, and again, so that a machine whose speed
drifts is as fast for all. Measured is CPU time. A kernel's ratio is its time over that of ``jit`` in the same round, so
above 1 ``jit`` is the faster; the median of the rounds' ratios says what to expect, the least what held every time.
Before any of it, all results are compared: a fast wrong answer is no answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import DTypeLike

from linattn_ref.attention.arguments import Array
from linattn_ref.experiments.measuring.timing import against_jit, one_thread
from linattn_ref.experiments.publishing import style
from linattn_ref.kernels import jit, reference

CAPTION = (
    "Softmax attention on one thread of a CPU: arithmetic a second that the mechanism needs (the masked half of a "
    "causal matrix counts as nothing), forward and with the backward pass. Lines: all keys; dashed: causal."
)
PASSES = ("forward", "forward + backward")
COLOURS = {"jit": style.BLUE, "pytorch": style.VERMILLION, "reference": style.GREY}


class Row(NamedTuple):
    """One kernel at one setting."""

    length: int  # N = L
    causal: bool
    passes: str  # one of PASSES
    kernel: str
    median_ms: float  # CPU time
    min_ms: float
    ratio_median: float  # its time over jit's in the same round
    ratio_min: float


class Results(NamedTuple):
    heads: int
    width: int  # D = M
    dtype: str
    repeats: int
    pytorch: str | None  # its version; None: not installed, so not compared
    rows: tuple[Row, ...]


class Inputs(NamedTuple):
    q: Array  # (1, H, N, D)
    k: Array
    v: Array
    d_out: Array


# A kernel: Inputs, causal, passes -> the output, and the gradients if they are asked for.
Kernel = Callable[[Inputs, bool, str], Sequence[Array]]


def compute(
    *,
    lengths: Sequence[int] = (256, 512, 1024, 2048, 4096),
    heads: int = 8,
    width: int = 64,
    repeats: int = 7,
    dtype: DTypeLike = np.float32,
    seed: int = 0,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Results:
    """Time ``jit``, ``reference`` and, where it is installed, PyTorch, at batch size 1.

    Parameters
    ----------
    lengths : sequence of int
        ``N = L``. At 4096 a round takes about 10 s, most of it the reference's.
    heads, width : int
        ``H``, and ``D = M``.
    repeats : int
        Rounds, after one that is not counted.
    dtype : float32 or float64
    seed : int
    progress : callable
        Wraps the sequence of lengths, as ``tqdm.tqdm`` does.

    Raises
    ------
    ValueError
        A count below 1, or another dtype.
    RuntimeError
        Two kernels disagree.
    """
    for name, count in (*(("lengths", n) for n in lengths), ("heads", heads), ("width", width), ("repeats", repeats)):
        if count < 1:
            raise ValueError(f"{name}: expected at least 1, got {count}")
    dtype = np.dtype(dtype)
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"dtype: expected float32 or float64, got {dtype}")
    kernels: dict[str, Kernel] = {"jit": partial(_run, jit), "reference": partial(_run, reference)}
    torch = _find_torch()
    if torch is not None:
        kernels["pytorch"] = partial(_run_torch, torch)
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    with one_thread(torch):
        for length in progress(lengths):
            inputs = Inputs(*rng.standard_normal((4, 1, heads, length, width)).astype(dtype))
            for causal in (False, True):
                _compare(kernels, inputs, causal)
                for passes in PASSES:
                    rows += _time(kernels, inputs, causal, passes, repeats)
    return Results(heads, width, dtype.name, repeats, torch and torch.__version__, tuple(rows))


def _run(room: Any, inputs: Inputs, causal: bool, passes: str) -> Sequence[Array]:
    q, k, v, d_out = inputs
    scale = 1 / math.sqrt(q.shape[-1])
    out, log_sum_exp = room.softmax.forward(q, k, v, None, causal, scale)
    if passes == "forward":
        return (out,)
    return out, *room.softmax.backward(d_out, q, k, v, out, log_sum_exp, None, causal, scale)


def _run_torch(torch: Any, inputs: Inputs, causal: bool, passes: str) -> Sequence[Array]:
    """The same arrays, not copies of them."""
    with_gradient = passes != "forward"
    q, k, v = (torch.from_numpy(x).requires_grad_(with_gradient) for x in inputs[:3])
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    if not with_gradient:
        return (out.numpy(),)
    out.backward(torch.from_numpy(inputs.d_out))
    return tuple(x.numpy() for x in (out.detach(), q.grad, k.grad, v.grad))


def _find_torch() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch


def _compare(kernels: dict[str, Kernel], inputs: Inputs, causal: bool) -> None:
    """All results against jit's: to 1e-4 of the largest number, or 1e-11 in float64, some 1000 roundings."""
    tolerance = 1e-4 if inputs.q.dtype == np.float32 else 1e-11
    expected = kernels["jit"](inputs, causal, PASSES[1])
    for name, kernel in kernels.items():
        for what, got, want in zip(
            ("out", "d_q", "d_k", "d_v"), kernel(inputs, causal, PASSES[1]), expected, strict=True
        ):
            error = abs(got - want).max() / abs(want).max()
            if not error < tolerance:
                raise RuntimeError(f"{name} and jit differ in {what} by {error:.1e} of its largest entry")


def _time(kernels: dict[str, Kernel], inputs: Inputs, causal: bool, passes: str, repeats: int) -> list[Row]:
    """A row for each kernel from ``repeats`` rounds of one call each, after a round that is not counted."""
    calls = {name: partial(kernel, inputs, causal, passes) for name, kernel in kernels.items()}
    setting = inputs.q.shape[-2], causal, passes
    return [Row(*setting, name, *times) for name, times in against_jit(calls, repeats).items()]


def gigaflops(row: Row, heads: int, width: int) -> float:
    """Arithmetic a second: two products of ``2 D`` operations a visible pair forward, five more backward."""
    pairs = row.length * (row.length + 1) / 2 if row.causal else row.length**2
    products = 2 if row.passes == "forward" else 7
    return products * 2 * width * heads * pairs / row.median_ms / 1e6


def table(results: Results) -> str:
    """The comparison as a Markdown table, a line a setting, and below it what stands in it."""
    others = list(dict.fromkeys(row.kernel for row in results.rows if row.kernel != "jit"))
    header = ["N = L", "causal", "passes", "jit, ms", *(f"{name}, ms | x, median | x, least" for name in others)]
    by_setting: dict[tuple[int, bool, str], dict[str, Row]] = {}
    for row in results.rows:
        by_setting.setdefault(row[:3], {})[row.kernel] = row
    lines = [f"| {' | '.join(header)} |", f"| ---: | --- | --- | {' | '.join(['---:'] * (1 + 3 * len(others)))} |"]
    for (length, causal, passes), rows in by_setting.items():
        cells = [str(length), "yes" if causal else "no", passes, f"{rows['jit'].median_ms:.1f}"]
        for row in (rows[name] for name in others):
            cells += [f"{row.median_ms:.1f}", f"{row.ratio_median:.2f}", f"{row.ratio_min:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    peer = f"PyTorch {results.pytorch}" if results.pytorch else "PyTorch is not installed (extra `peers`): not compared"
    setting = f"B = 1, H = {results.heads}, D = M = {results.width}, {results.dtype}, one thread"
    lines += ["", f"{setting}, {results.repeats} rounds; ms of CPU time, median; x: times jit's. {peer}."]
    return "\n".join(lines)


def draw(results: Results) -> Figure:
    """Arithmetic a second against length, forward and with the backward pass."""
    figure, axes = style.figure(1, 2, height=0.45, sharey=True)
    lengths = list(dict.fromkeys(row.length for row in results.rows))
    for axis, passes in zip(axes, PASSES, strict=True):
        for kernel, colour in COLOURS.items():
            for causal, line in ((False, "-"), (True, "--")):
                rows = [row for row in results.rows if row[1:4] == (causal, passes, kernel)]
                if rows:
                    speeds = [gigaflops(row, results.heads, results.width) for row in rows]
                    label = f"{kernel}, causal" if causal else kernel
                    axis.plot([row.length for row in rows], speeds, f"o{line}", color=colour, label=label)
        axis.set(title=passes, xlabel="N = L", xscale="log")
        axis.set_xticks(lengths, [str(n) for n in lengths])
        axis.minorticks_off()
    axes[0].set_ylabel("Gflop/s, one thread")
    axes[0].set_ylim(bottom=0)  # after both are drawn: they share the axis
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(COLOURS), handlelength=3.5
    )
    return figure
