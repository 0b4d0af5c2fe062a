"""Attention with sparse patterns beside HuggingFace's and fast-transformers', on one thread of the CPU.

Everything runs in this process, on the same arrays, in turn: one call of each, and again, so that a machine whose speed
drifts is as fast for all. Measured is CPU time. A ratio is a kernel's time over that of ``jit`` in the same round, so
above 1 ``jit`` is the faster; the median of the rounds' ratios says what to expect, the least what held every time.
Before any of it, all results are compared: a fast wrong answer is no answer. Only PyTorch's attention to all pairs is
another function; it shows what the pattern saves.

All numbers are of the attention alone, without projections (`bench_patterns_peers`). A window is given as the keys on
each side: ``window=256`` is HuggingFace's ``attention_window=512`` and fast-transformers' ``local_context=513``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from linattn_ref.attention import bigbird, local, longformer
from linattn_ref.attention.arguments import Array
from linattn_ref.experiments.benches import bench_patterns_peers as peers_of
from linattn_ref.experiments.benches.bench_patterns_peers import GLOBAL_TOKEN, Call, Inputs, Peers
from linattn_ref.experiments.measuring.timing import against_jit, one_thread
from linattn_ref.experiments.publishing import style
from linattn_ref.kernels import jit, parts, reference

CAPTION = (
    "Attention with sparse patterns on one thread of a CPU, forward and backward, batch size 1: time a token against "
    "the length, beside the packages that have the same pattern, and beside PyTorch's attention to all pairs."
)
PASSES = ("forward", "forward + backward")
MECHANISMS = ("local", "longformer", "bigbird")
ALL_PAIRS = "pytorch, all pairs"
LOOKS = {
    "jit": (style.BLUE, "o-"),
    "reference": (style.GREY, "o-"),
    "fast-transformers": (style.ORANGE, "s-"),
    "transformers": (style.VERMILLION, "s-"),
    ALL_PAIRS: (style.BLACK, "^:"),
}
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
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
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
    progress : callable
        Wraps the sequence of lengths, as ``tqdm.tqdm`` does.

    Raises
    ------
    ValueError
        A count below 1, or a length with fewer blocks than are to be drawn.
    RuntimeError
        Two kernels disagree.
    """
    counts = {"heads": heads, "width": width, "window": window, "block": block, "drawn": drawn, "repeats": repeats}
    for name, count in (*(("lengths", n) for n in lengths), *counts.items()):
        if count < 1:
            raise ValueError(f"{name}: expected at least 1, got {count}")
    peers = peers_of.find()
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    pairs: list[tuple[str, int, int]] = []
    with one_thread(peers.torch):
        for length in progress(lengths):
            inputs = Inputs(*rng.standard_normal((len(Inputs._fields), 1, heads, length, width)).astype(np.float32))
            setting = Setting(window, block, bigbird.draw_random_blocks(-(-length // block), drawn, rng))
            for mechanism in MECHANISMS:
                pairs.append((mechanism, length, parts.count_pairs(pattern(mechanism, length, setting))))
                compare(mechanism, calls(mechanism, peers, inputs, setting, with_gradient=True))
                for passes in PASSES:
                    timed = calls(mechanism, peers, inputs, setting, with_gradient=passes != "forward")
                    rows += time(mechanism, length, passes, timed, repeats)
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


# --- Comparing and timing -------------------------------------------------------------------------------------------


def compare(mechanism: str, kernels: Mapping[str, Call]) -> None:
    """All results against jit's, but for attention to all pairs, which is meant to be another."""
    expected = kernels["jit"]()
    for name, call in kernels.items():
        if name == ALL_PAIRS:
            continue
        for what, got, want in zip(OUTPUTS, call(), expected, strict=False):
            error = abs(got - want).max() / abs(want).max()
            if not error < TOLERANCE:
                raise RuntimeError(f"{mechanism}: {name} and jit differ in {what} by {error:.1e} of its largest entry")


def time(mechanism: str, length: int, passes: str, kernels: Mapping[str, Call], repeats: int) -> list[Row]:
    """A row for each kernel from ``repeats`` rounds of one call each, after a round that is not counted."""
    return [Row(mechanism, length, passes, name, *times) for name, times in against_jit(kernels, repeats).items()]


# --- Showing --------------------------------------------------------------------------------------------------------


def table(results: Results) -> str:
    """The comparison as a Markdown table, a line a setting, and below it what stands in it."""
    others = [name for name in LOOKS if name != "jit" and any(row.kernel == name for row in results.rows)]
    lines = [
        f"| {' | '.join(['mechanism', 'N = L', 'pairs', 'passes', 'jit', *others])} |",
        f"| --- | ---: | ---: | --- | {' | '.join(['---:'] * (1 + len(others)))} |",
    ]
    by_setting: dict[tuple[str, int, str], dict[str, Row]] = {}
    for row in results.rows:
        by_setting.setdefault(row[:3], {})[row.kernel] = row
    share = {(mechanism, length): count / length**2 for mechanism, length, count in results.pairs}
    for (mechanism, length, passes), rows in by_setting.items():
        times = (f"{row.ratio_median:.2f} ({row.ratio_min:.2f})" if row else "" for row in map(rows.get, others))
        cells = [mechanism, str(length), f"{share[mechanism, length]:.1%}", passes, f"{rows['jit'].median_ms:.1f} ms"]
        lines.append(f"| {' | '.join([*cells, *times])} |")
    return "\n".join([*lines, "", _note(results)])


def _note(results: Results) -> str:
    compared = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    missing = [name for name in ("PyTorch", "transformers", "fast-transformers") if name not in results.versions]
    return (
        f"B = 1, H = {results.heads}, D = M = {results.width}, float32, one thread, {results.repeats} rounds; "
        f"window {results.window} on each side; blocks of {results.block}, {results.drawn} random. "
        "jit: CPU time, median; the others: times jit's, median (least). Attention alone, without projections."
        + (f" {compared}." if compared else "")
        + (f" Not installed, so not compared: {', '.join(missing)}." if missing else "")
    )


def draw(results: Results) -> Figure:
    """Time a token against length, a panel a mechanism."""
    figure, axes = style.figure(1, len(MECHANISMS), height=0.42, sharey=True)
    lengths = sorted({row.length for row in results.rows})
    for axis, mechanism in zip(axes, MECHANISMS, strict=True):
        for kernel, (colour, look) in LOOKS.items():
            wanted = mechanism, PASSES[1], kernel
            rows = [row for row in results.rows if (row.mechanism, row.passes, row.kernel) == wanted]
            if rows:
                per_token = [1e3 * row.median_ms / row.length for row in rows]
                axis.plot([row.length for row in rows], per_token, look, color=colour, label=kernel)
        axis.set(title=mechanism, xlabel="N = L", xscale="log", yscale="log")
        axis.set_xticks(lengths, [str(n) for n in lengths])
        axis.minorticks_off()
    least, most = axes[0].get_ylim()
    ticks = [digit * 10.0**power for power in range(-3, 7) for digit in (1, 2, 5)]
    axes[0].set_yticks([tick for tick in ticks if least <= tick <= most])
    axes[0].yaxis.set_major_formatter("{x:g}")
    axes[0].set_ylabel("µs a token, both passes")
    handles: dict[str, Any] = {}
    for axis in axes:
        handles |= dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
    shown = [name for name in LOOKS if name in handles]
    figure.legend([handles[name] for name in shown], shown, loc="outside lower center", ncols=3, handlelength=3.5)
    return figure
