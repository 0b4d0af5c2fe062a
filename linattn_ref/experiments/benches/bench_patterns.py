"""Attention with sparse patterns beside HuggingFace's and fast-transformers', on one thread of the CPU.

`engine` says how time is measured. PyTorch's attention to all pairs is another function, and its results are not
compared; it shows what the pattern saves.

All numbers are of the attention alone, without projections (`bench_patterns_peers`). A window is given as the keys on
each side: ``window=256`` is HuggingFace's ``attention_window=512`` and fast-transformers' ``local_context=513``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from linattn_ref.attention.sparse import bigbird, local, longformer, part
from linattn_ref.experiments.benches import bench_patterns_peers as peers_of
from linattn_ref.experiments.benches import engine
from linattn_ref.experiments.benches.bench_patterns_peers import ALL_PAIRS, GLOBAL_TOKEN, Inputs
from linattn_ref.experiments.benches.engine import BOTH, PASSES, TOLD, Curve
from linattn_ref.experiments.publishing import style
from linattn_ref.kernels import jit, reference
from linattn_ref.op import Array

__all__ = ["compute", "draw", "table"]

TITLES = {"local": "sliding window", "longformer": "Longformer", "bigbird": "BigBird"}
PAGES = {"local": (local, 3), "longformer": (longformer, 6), "bigbird": (bigbird, 3)}  # and how many arrays it takes
LOOKS = {
    "jit": (style.BLUE, "o-"),
    "reference": (style.GREY, "o-"),
    "fast-transformers": (style.ORANGE, "s-"),
    "transformers": (style.VERMILLION, "s-"),
    ALL_PAIRS: (style.BLACK, "^:"),
}
PACKAGES = ("PyTorch", "transformers", "fast-transformers")
OUTPUTS = ("out", "d_q", "d_k", "d_v", "d_q_global", "d_k_global", "d_v_global")
TOLERANCE = 1e-4  # of the largest number: some 1000 roundings in float32


@engine.bench("heads", "width", "window", "block", "drawn", "repeats")
def compute(
    *,
    lengths: Sequence[int] = (1024, 2048, 4096),
    heads: int = 8,
    width: int = 64,
    window: int = 256,
    block: int = 64,
    drawn: int = 3,
    repeats: int = 5,
    seed: int = 0,
) -> engine.Measured:
    """Time ``jit``, ``reference`` and, where they are installed, the other packages, in float32 at batch size 1.

    Parameters
    ----------
    lengths : sequence of int
        ``N = L``. HuggingFace's modules take part where it is a multiple of ``2 window``, or of ``block``.
    heads, width : int
        ``H``, and ``D = M``.
    window : int
        Keys on each side, of ``local`` and ``longformer``; the latter has one global token besides.
    block, drawn : int
        BigBird's block, and how many random ones each has beside three of window and two global.
    repeats : int
        Rounds, after one that is not counted.
    seed : int

    Raises
    ------
    ValueError
        A count below 1, or a length with fewer blocks than are to be drawn.
    RuntimeError
        Two kernels disagree.
    """
    peers, rng = peers_of.find(), np.random.default_rng(seed)
    pairs: list[tuple[str, int, int]] = []
    for length in lengths:
        inputs = Inputs(*rng.standard_normal((len(Inputs._fields), 1, heads, length, width)).astype(np.float32))
        random_blocks = bigbird.draw_random_blocks(-(-length // block), drawn, rng)
        options: dict[str, dict[str, Any]] = {
            "local": {"window": window},
            "longformer": {"window": window, "global_tokens": [GLOBAL_TOKEN]},
            "bigbird": {"block": block, "random_blocks": random_blocks},
        }
        for mechanism, own in options.items():
            pairs.append((mechanism, length, count_pairs(mechanism, length, own)))
            for passes in PASSES:
                calls = {
                    name: partial(_ours, room, mechanism, inputs, own, passes)
                    for name, room in (("jit", jit), ("reference", reference))
                } | peers_of.calls(mechanism, peers, inputs, own, passes == BOTH)
                setting = {"mechanism": mechanism, "length": length, "passes": passes}
                compared: dict[str, Any] = {"tolerance": TOLERANCE, "apart": [ALL_PAIRS], "outputs": OUTPUTS}
                yield from engine.measure(setting, calls, repeats, **compared)
    return {"versions": peers.versions, "pairs": tuple(pairs)}


def _ours(room: Any, mechanism: str, inputs: Inputs, options: dict[str, Any], passes: str) -> Sequence[Array]:
    page, count = PAGES[mechanism]
    out, saved = page.forward(*inputs[:count], **options, kernels=room)
    return (out, *page.backward(inputs.d_out, saved)) if passes == BOTH else (out,)


def count_pairs(mechanism: str, length: int, options: dict[str, Any]) -> int:
    """The pairs that a mechanism allows; the rows of Longformer's global token are no part of it."""
    if mechanism == "bigbird":
        options = {"window_blocks": 3, "global_blocks": (0, -1), **options}
    lengths = (length, length) if mechanism == "local" else (length,)
    return part.count_pairs(PAGES[mechanism][0].parts_of(*lengths, **options))


def table(results: engine.Results) -> str:
    """The comparison as a Markdown table, a line a setting, and below it what stands in it."""
    share = {(mechanism, length): f"{count / length**2:.1%}" for mechanism, length, count in results.pairs}
    header = ("mechanism", "N = L", "passes", "pairs")
    lines = engine.table(header, results.rows, LOOKS, cells=lambda setting: (*setting, share[setting[:2]]))
    setting = (
        f"B = 1, H = {results.heads}, D = M = {results.width}, float32, one thread, {results.repeats} rounds; "
        f"window {results.window} on each side; blocks of {results.block}, {results.drawn} random."
    )
    compared = engine.compared(results.versions, PACKAGES)
    return engine.page(lines, note=[setting, TOLD, "Attention alone, without projections.", compared])


def draw(results: engine.Results) -> Figure:
    """Attention with sparse patterns on one thread of a CPU, forward and backward, batch size 1: time a token
    against the length, beside the packages that have the same pattern, and beside PyTorch's attention to all pairs.
    """

    def curve(kernel: str, mechanism: str) -> Curve:
        rows = engine.rows_of(results, mechanism=mechanism, passes=BOTH, kernel=kernel)
        return Curve(kernel, *LOOKS[kernel], engine.per_token(rows))

    panels = {title: [curve(kernel, name) for kernel in LOOKS] for name, title in TITLES.items()}
    return engine.draw(panels, "µs a token, both passes")
