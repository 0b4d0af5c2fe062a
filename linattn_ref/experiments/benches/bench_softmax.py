"""The softmax kernels beside PyTorch's ``scaled_dot_product_attention``, on one thread of the CPU.

Batch size 1. `engine` says how time is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from linattn_ref.attention import online_softmax, softmax
from linattn_ref.experiments.benches import engine, peers
from linattn_ref.experiments.benches.engine import BOTH, FORWARD, PASSES, TOLD, Call, Curve, Row
from linattn_ref.experiments.publishing import style
from linattn_ref.kernels import jit, reference
from linattn_ref.op import Array

__all__ = ["compute", "draw", "table"]

COLOURS = {"jit": style.BLUE, "pytorch": style.VERMILLION, "reference": style.GREY}
TOLERANCE = {"float32": 1e-4, "float64": 1e-11}  # some 1000 roundings


@engine.bench("heads", "width", "dtype", "repeats")
def compute(
    *,
    lengths: Sequence[int] = (256, 512, 1024, 2048, 4096),
    heads: int = 8,
    width: int = 64,
    repeats: int = 7,
    dtype: str = "float32",
    seed: int = 0,
) -> engine.Measured:
    """Time ``jit``, ``reference`` and, where it is installed, PyTorch, at batch size 1.

    Parameters
    ----------
    lengths : sequence of int
        ``N = L``. At 4096 a round takes about 10 s, most of it the reference's.
    heads, width : int
        ``H``, and ``D = M``.
    repeats : int
        Rounds, after one that is not counted.
    dtype : {"float32", "float64"}
    seed : int

    Raises
    ------
    ValueError
        A count below 1, or another dtype.
    RuntimeError
        Two kernels disagree.
    """
    if dtype not in TOLERANCE:
        raise ValueError(f"dtype: expected float32 or float64, got {dtype}")
    torch, rng = engine.find("torch"), np.random.default_rng(seed)
    for length in lengths:
        *qkv, d_out = rng.standard_normal((4, 1, heads, length, width)).astype(dtype)
        for causal in (False, True):
            for passes in PASSES:
                task = qkv, d_out, causal, passes
                calls: dict[str, Call] = {name: partial(_run, name, *task) for name in ("jit", "reference")}
                if torch is not None:
                    calls["pytorch"] = in_pytorch(torch, *task)
                setting = {"length": length, "causal": causal, "passes": passes}
                yield from engine.measure(setting, calls, repeats, tolerance=TOLERANCE[dtype])
    return {"pytorch": torch and torch.__version__}


def _run(name: str, qkv: Sequence[Array], d_out: Array, causal: bool, passes: str) -> Sequence[Array]:
    page, backend = (softmax, jit) if name == "jit" else (online_softmax, reference)  # neither keeps P
    out, saved = page.forward(*qkv, causal=causal, kernels=backend)
    return (out,) if passes == FORWARD else (out, *page.backward(d_out, saved))


def in_pytorch(torch: Any, qkv: Sequence[Array], d_out: Array, causal: bool, passes: str) -> Call:
    """PyTorch's kernel, differentiated by it."""
    attention = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=causal)
    return partial(peers.in_torch, torch, attention, qkv, d_out, passes == BOTH)


def gigaflops(row: Row, heads: int, width: int) -> float:
    """Arithmetic a second: two products of ``2 D`` operations a visible pair forward, five more backward."""
    pairs = row.length * (row.length + 1) / 2 if row.causal else row.length**2
    products = 2 if row.passes == FORWARD else 7
    return products * 2 * width * heads * pairs / row.median_ms / 1e6


def table(results: engine.Results) -> str:
    """The comparison as a Markdown table, a line a setting, and below it what stands in it."""
    lines = engine.table(("N = L", "causal", "passes"), results.rows, COLOURS)
    setting = f"B = 1, H = {results.heads}, D = M = {results.width}, {results.dtype}, one thread"
    compared = engine.compared({"PyTorch": results.pytorch} if results.pytorch else {}, ["PyTorch"])
    return engine.page(lines, note=[f"{setting}, {results.repeats} rounds.", TOLD, compared])


def draw(results: engine.Results) -> Figure:
    """Softmax attention on one thread of a CPU: arithmetic a second that the mechanism needs (the masked half of a
    causal matrix counts as nothing), forward and with the backward pass. Lines: all keys; dashed: causal.
    """

    def curve(kernel: str, causal: bool, passes: str) -> Curve:
        rows = engine.rows_of(results, causal=causal, passes=passes, kernel=kernel)
        points = [(row.length, gigaflops(row, results.heads, results.width)) for row in rows]
        return Curve(kernel + ", causal" * causal, COLOURS[kernel], "o--" if causal else "o-", points)

    kinds = [(kernel, causal) for kernel in COLOURS for causal in (False, True)]
    panels = {passes: [curve(*kind, passes) for kind in kinds] for passes in PASSES}
    return engine.draw(panels, "Gflop/s, one thread", log=False)
