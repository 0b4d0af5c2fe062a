"""Attention with sparse patterns beside HuggingFace's and fast-transformers', on one thread of the CPU.

`harness` says how time is measured. PyTorch's attention to all pairs is another function, and its results are not
compared; it shows what the pattern saves.

All numbers are of the attention alone, without projections (`bench_patterns_peers`). A window is given as the keys on
each side: ``window=256`` is HuggingFace's ``attention_window=512`` and fast-transformers' ``local_context=513``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from linattn_ref.attention import bigbird, local, longformer
from linattn_ref.attention.arguments import Array
from linattn_ref.experiments.benches import bench_patterns_peers as peers_of
from linattn_ref.experiments.benches import harness
from linattn_ref.experiments.benches.bench_patterns_peers import GLOBAL_TOKEN, Inputs, Peers
from linattn_ref.experiments.benches.harness import BOTH, PASSES, TOLD, Call, Curve, per_token
from linattn_ref.experiments.measuring.timing import one_thread
from linattn_ref.experiments.publishing import style
from linattn_ref.kernels import jit, parts, reference

__all__ = ["Results", "compute", "draw", "table"]

MECHANISMS = ("local", "longformer", "bigbird")
TITLES = {"local": "sliding window", "longformer": "Longformer", "bigbird": "BigBird"}
ALL_PAIRS = "pytorch, all pairs"
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


class Row(NamedTuple):
    """One kernel at one setting."""

    mechanism: str  # one of MECHANISMS
    length: int  # N = L
    passes: str  # one of PASSES
    kernel: str
    median_ms: float  # CPU time
    min_ms: float
    ratio_median: float  # its time over jit's in the same round
    ratio_min: float


class Results(NamedTuple):
    heads: int
    width: int  # D = M
    window: int  # keys on each side
    block: int
    drawn: int  # random blocks a block
    repeats: int
    versions: dict[str, str]  # of the packages compared with
    pairs: tuple[tuple[str, int, int], ...]  # mechanism, length, how many pairs it allows
    rows: tuple[Row, ...]


class Setting(NamedTuple):
    """A pattern's numbers at one length."""

    window: int
    block: int
    random_blocks: NDArray[np.intp]


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
) -> Results:
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
    harness.check_counts(
        lengths=lengths, heads=heads, width=width, window=window, block=block, drawn=drawn, repeats=repeats
    )
    peers = peers_of.find()
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    pairs: list[tuple[str, int, int]] = []
    with one_thread(peers.torch):
        for length in lengths:
            inputs = Inputs(*rng.standard_normal((len(Inputs._fields), 1, heads, length, width)).astype(np.float32))
            setting = Setting(window, block, bigbird.draw_random_blocks(-(-length // block), drawn, rng))
            for mechanism in MECHANISMS:
                pairs.append((mechanism, length, parts.count_pairs(pattern(mechanism, length, setting))))
                for passes in PASSES:
                    kernels = calls(mechanism, peers, inputs, setting, with_gradient=passes == BOTH)
                    results = {name: call() for name, call in kernels.items() if name != ALL_PAIRS}
                    harness.compare(f"{mechanism}, {passes}", results, TOLERANCE, outputs=OUTPUTS)
                    rows += harness.time(Row, (mechanism, length, passes), kernels, repeats)
    return Results(heads, width, window, block, drawn, repeats, peers.versions, tuple(pairs), tuple(rows))


# --- What is compared -----------------------------------------------------------------------------------------------


def calls(mechanism: str, peers: Peers, inputs: Inputs, setting: Setting, *, with_gradient: bool) -> dict[str, Call]:
    """Each kernel by its name, ``jit`` first."""
    own = {"jit": jit, "reference": reference}
    found = {name: partial(_OWN[mechanism], room, inputs, setting, with_gradient) for name, room in own.items()}
    return {**found, **dict(_others(mechanism, peers, inputs, setting, with_gradient))}


def _others(
    mechanism: str, peers: Peers, inputs: Inputs, setting: Setting, with_gradient: bool
) -> Iterator[tuple[str, Call]]:
    length = inputs.q.shape[-2]
    if mechanism == "local" and peers.local:
        yield "fast-transformers", peers_of.windows(peers, inputs, setting.window, with_gradient)
    if mechanism == "longformer" and peers.longformer and length % (2 * setting.window) == 0:
        yield "transformers", peers_of.longformer(peers, inputs, setting.window, with_gradient)
    if mechanism == "bigbird" and peers.bigbird and length % setting.block == 0:
        yield "transformers", peers_of.bigbird(peers, inputs, setting.block, setting.random_blocks, with_gradient)
    if peers.torch:
        yield ALL_PAIRS, peers_of.all_pairs(peers, inputs, with_gradient)


def _local(room: Any, inputs: Inputs, setting: Setting, with_gradient: bool) -> Sequence[Array]:
    out, saved = local.forward(*inputs[:3], window=setting.window, kernels=room)
    return (out, *local.backward(inputs.d_out, saved)) if with_gradient else (out,)


def _longformer(room: Any, inputs: Inputs, setting: Setting, with_gradient: bool) -> Sequence[Array]:
    out, saved = longformer.forward(*inputs[:6], window=setting.window, global_tokens=[GLOBAL_TOKEN], kernels=room)
    return (out, *longformer.backward(inputs.d_out, saved)) if with_gradient else (out,)


def _bigbird(room: Any, inputs: Inputs, setting: Setting, with_gradient: bool) -> Sequence[Array]:
    out, saved = bigbird.forward(*inputs[:3], block=setting.block, random_blocks=setting.random_blocks, kernels=room)
    return (out, *bigbird.backward(inputs.d_out, saved)) if with_gradient else (out,)


_OWN = {"local": _local, "longformer": _longformer, "bigbird": _bigbird}


def pattern(mechanism: str, length: int, setting: Setting) -> parts.Pattern:
    """The pairs of a mechanism; the rows of Longformer's global token are no part of it."""
    if mechanism == "local":
        return local.parts_of(length, length, window=setting.window)
    if mechanism == "longformer":
        return longformer.parts_of(length, window=setting.window, global_tokens=[GLOBAL_TOKEN])
    return bigbird.parts_of(
        length, block=setting.block, window_blocks=3, global_blocks=(0, -1), random_blocks=setting.random_blocks
    )


# --- Showing --------------------------------------------------------------------------------------------------------


def table(results: Results) -> str:
    """The comparison as a Markdown table, a line a setting, and below it what stands in it."""
    share = {(mechanism, length): count / length**2 for mechanism, length, count in results.pairs}
    lines = harness.table(
        ("mechanism", "N = L", "passes", "pairs"),
        results.rows,
        LOOKS,
        cells=lambda setting: (*setting, f"{share[setting[:2]]:.1%}"),
    )
    note = (
        f"B = 1, H = {results.heads}, D = M = {results.width}, float32, one thread, {results.repeats} rounds; "
        f"window {results.window} on each side; blocks of {results.block}, {results.drawn} random. {TOLD} Attention "
        f"alone, without projections. {harness.compared(results.versions, PACKAGES)}"
    )
    return "\n".join([*lines, "", note])


def draw(results: Results) -> Figure:
    """Attention with sparse patterns on one thread of a CPU, forward and backward, batch size 1: time a token
    against the length, beside the packages that have the same pattern, and beside PyTorch's attention to all pairs.
    """

    def curve(kernel: str, mechanism: str) -> Curve:
        wanted = mechanism, BOTH, kernel
        rows = [row for row in results.rows if (row.mechanism, row.passes, row.kernel) == wanted]
        return Curve(kernel, *LOOKS[kernel], [per_token(row, row.length) for row in rows])

    panels = {TITLES[name]: [curve(kernel, name) for kernel in LOOKS] for name in MECHANISMS}
    return harness.draw(panels, "µs a token, both passes")
