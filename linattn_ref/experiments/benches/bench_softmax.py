"""The softmax kernels beside PyTorch's ``scaled_dot_product_attention``, on one thread of the CPU.

Batch size 1. `harness` says how time is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import DTypeLike

from linattn_ref.attention import online_softmax, softmax
from linattn_ref.attention.arguments import Array
from linattn_ref.experiments.benches import harness
from linattn_ref.experiments.benches.harness import BOTH, FORWARD, PASSES, TOLD, Call, Curve
from linattn_ref.experiments.measuring.timing import one_thread
from linattn_ref.experiments.publishing import style
from linattn_ref.kernels import jit, reference

__all__ = ["Results", "compute", "draw", "table"]

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


def compute(
    *,
    lengths: Sequence[int] = (256, 512, 1024, 2048, 4096),
    heads: int = 8,
    width: int = 64,
    repeats: int = 7,
    dtype: DTypeLike = np.float32,
    seed: int = 0,
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

    Raises
    ------
    ValueError
        A count below 1, or another dtype.
    RuntimeError
        Two kernels disagree.
    """
    harness.check_counts(lengths=lengths, heads=heads, width=width, repeats=repeats)
    dtype = np.dtype(dtype)
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"dtype: expected float32 or float64, got {dtype}")
    tolerance = 1e-4 if dtype == np.float32 else 1e-11  # some 1000 roundings
    torch = harness.find("torch")
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    with one_thread(torch):
        for length in lengths:
            inputs = Inputs(*rng.standard_normal((4, 1, heads, length, width)).astype(dtype))
            for causal in (False, True):
                for passes in PASSES:
                    kernels = kernels_of(inputs, causal, passes, torch)
                    results = {name: kernel() for name, kernel in kernels.items()}
                    harness.compare(f"causal={causal}, {passes}", results, tolerance)
                    rows += harness.time(Row, (length, causal, passes), kernels, repeats)
    return Results(heads, width, dtype.name, repeats, torch and torch.__version__, tuple(rows))


def kernels_of(inputs: Inputs, causal: bool, passes: str, torch: Any) -> dict[str, Call]:
    """By name."""
    found: dict[str, Call] = {
        name: partial(_run, backend, inputs, causal, passes)
        for name, backend in (("jit", jit), ("reference", reference))
    }
    if torch is not None:
        attention = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=causal)
        found["pytorch"] = partial(harness.in_torch, torch, attention, inputs[:3], inputs.d_out, passes == BOTH)
    return found


def _run(backend: Any, inputs: Inputs, causal: bool, passes: str) -> Sequence[Array]:
    *qkv, d_out = inputs
    page = online_softmax if backend is reference else softmax  # neither keeps P
    out, saved = page.forward(*qkv, causal=causal, kernels=backend)
    return (out,) if passes == FORWARD else (out, *page.backward(d_out, saved))


def gigaflops(row: Row, heads: int, width: int) -> float:
    """Arithmetic a second: two products of ``2 D`` operations a visible pair forward, five more backward."""
    pairs = row.length * (row.length + 1) / 2 if row.causal else row.length**2
    products = 2 if row.passes == FORWARD else 7
    return products * 2 * width * heads * pairs / row.median_ms / 1e6


def table(results: Results) -> str:
    """The comparison as a Markdown table, a line a setting, and below it what stands in it."""
    lines = harness.table(("N = L", "causal", "passes"), results.rows, COLOURS)
    setting = f"B = 1, H = {results.heads}, D = M = {results.width}, {results.dtype}, one thread"
    versions = {"PyTorch": results.pytorch} if results.pytorch else {}
    note = f"{setting}, {results.repeats} rounds. {TOLD} {harness.compared(versions, ['PyTorch'])}"
    return "\n".join([*lines, "", note])


def draw(results: Results) -> Figure:
    """Softmax attention on one thread of a CPU: arithmetic a second that the mechanism needs (the masked half of a
    causal matrix counts as nothing), forward and with the backward pass. Lines: all keys; dashed: causal.
    """

    def curve(kernel: str, causal: bool, passes: str) -> Curve:
        rows = [row for row in results.rows if row[1:4] == (causal, passes, kernel)]
        points = [(row.length, gigaflops(row, results.heads, results.width)) for row in rows]
        label, look = (f"{kernel}, causal", "o--") if causal else (kernel, "o-")
        return Curve(label, COLOURS[kernel], look, points)

    panels = {
        passes: [curve(kernel, causal, passes) for kernel in COLOURS for causal in (False, True)] for passes in PASSES
    }
    return harness.draw(panels, "Gflop/s, one thread", log=False)
