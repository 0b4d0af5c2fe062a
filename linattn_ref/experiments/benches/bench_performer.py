"""Performer attention beside performer-pytorch, on one thread of the CPU, in float32 at batch size 1.

Both are given the same directions and positive features. performer-pytorch without CUDA writes out the state of every
position of a chunk, ``(N / 128, m, M)`` numbers a head, and keeps all of them where there is a gradient: its causal
backward pass is left out above 1024 tokens. Its features have ``1e-4`` added after the stabiliser, and its causal ones
see the maximum over later keys. What is timed has both; what results are compared with is the same code with 0 in place
of the ``1e-4``.

All run in this process in turn, on the same arrays. A ratio is a call's CPU time over that of ``jit`` in the same
round.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from linattn_ref.attention import feature_maps, performer
from linattn_ref.attention.arguments import Array
from linattn_ref.experiments.benches.bench_linear_peers import Inputs, find_torch
from linattn_ref.experiments.measuring.timing import against_jit, one_thread
from linattn_ref.experiments.publishing import style
from linattn_ref.kernels import jit, reference

PEER = "performer-pytorch"
NEEDS = "performer-pytorch, local-attention, axial-positional-embedding, einops"  # pip install --no-deps
CAPTION = (
    "Performer attention on one thread of a CPU, eight heads of 64, 256 positive features, float32: time a token "
    "against length, over all keys and causal, forward and with the backward pass."
)
CAUSAL, ALL = "causal", "all keys"
PASSES = ("forward", "forward + backward")
BOTH_LONGEST = 1024  # of performer-pytorch's causal backward pass: there it keeps 4 GB
TOLERANCE = 1e-3  # of the largest number; some 10^4 roundings of float32: exponents of up to 10^2 in both
LOOKS = {"jit": (style.BLUE, "o"), "reference": (style.GREY, "^"), PEER: (style.VERMILLION, "D")}
Call = Callable[[], Sequence[Array]]


class Row(NamedTuple):
    """One package at one task."""

    task: str  # ALL or CAUSAL
    passes: str  # one of PASSES
    size: int  # N
    name: str
    median_ms: float  # CPU time
    min_ms: float
    ratio_median: float  # its time over jit's in the same round
    ratio_min: float


class Results(NamedTuple):
    heads: int
    width: int  # D = M
    features: int  # m
    repeats: int
    versions: dict[str, str]  # of PyTorch and performer-pytorch, if they were there
    rows: tuple[Row, ...]


def compute(
    *,
    lengths: Sequence[int] = (1024, 4096),
    heads: int = 8,
    width: int = 64,
    features: int = 256,
    repeats: int = 5,
    seed: int = 0,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Results:
    """Time ``jit`` beside the reference and, where it is installed, performer-pytorch.

    Parameters
    ----------
    lengths : sequence of int
        ``N = L``.
    heads, width, features : int
        ``H``, ``D = M`` and ``m``.
    repeats : int
        Rounds, after one that is not counted.
    seed : int
    progress : callable
        Wraps the sequence of lengths, as ``tqdm.tqdm`` does.

    Raises
    ------
    ValueError
        A count below 1.
    RuntimeError
        Two of them disagree.
    """
    given = {"lengths": lengths, "heads": [heads], "width": [width], "features": [features], "repeats": [repeats]}
    for name, counts in given.items():
        for count in counts:
            if count < 1:
                raise ValueError(f"{name}: expected at least 1, got {count}")
    torch, peer = find_torch(), find_peer()
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    with one_thread(torch):
        for length in progress(lengths):
            inputs = Inputs(*rng.standard_normal((4, 1, heads, length, width)).astype(np.float32))
            omega = feature_maps.orthogonal_gaussian(features, width, rng, dtype=np.float32)
            for task in (ALL, CAUSAL):
                for passes in PASSES:
                    with_peer = peer and not (task == CAUSAL and passes == PASSES[1] and length > BOTH_LONGEST)
                    calls = _calls(inputs, omega, task, passes, torch, peer if with_peer else None)
                    _compare(task, passes, calls, inputs, omega, torch, peer if with_peer else None)
                    rows += _time(task, passes, length, calls, repeats)
    return Results(heads, width, features, repeats, versions(torch, peer), tuple(rows))


def find_peer() -> Any:
    """The module of performer-pytorch, or None where it or what it needs is not installed."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # distutils, and PyTorch's operators that are deprecated
        try:
            return importlib.import_module("performer_pytorch.performer_pytorch")
        except ImportError:
            return None


def versions(torch: Any, peer: Any) -> dict[str, str]:
    """Version of each package that takes part."""
    from importlib import metadata

    if peer is None:
        return {}
    try:
        version = metadata.version(PEER)
    except metadata.PackageNotFoundError:
        version = "of unknown version"
    return {"PyTorch": torch.__version__, PEER: version}


# --- What is compared -----------------------------------------------------------------------------------------------


def _calls(inputs: Inputs, omega: Array, task: str, passes: str, torch: Any, peer: Any) -> dict[str, Call]:
    """By name, ``jit`` first."""
    calls: dict[str, Call] = {
        name: partial(_ours, room, inputs, omega, task, passes)
        for name, room in (("jit", jit), ("reference", reference))
    }
    if peer is not None:
        calls[PEER] = partial(_theirs, torch, _module(torch, peer, omega, task), inputs, passes)
    return calls


def _ours(room: Any, inputs: Inputs, omega: Array, task: str, passes: str) -> Sequence[Array]:
    q, k, v, d_out = inputs
    out, saved = performer.forward(q, k, v, omega, causal=task == CAUSAL, kernels=room)
    return (out,) if passes == PASSES[0] else (out, *performer.backward(d_out, saved)[:3])


def _module(torch: Any, peer: Any, omega: Array, task: str) -> Any:
    """``FastAttention`` with our directions."""
    with contextlib.redirect_stdout(io.StringIO()):  # it says that it has no CUDA
        module = peer.FastAttention(omega.shape[1], len(omega), causal=task == CAUSAL)
    module.projection_matrix.copy_(torch.from_numpy(omega))
    return module


def _theirs(torch: Any, module: Any, inputs: Inputs, passes: str) -> Sequence[Array]:
    """The same arrays, not copies of them."""
    with_gradient = passes != PASSES[0]
    leaves = [torch.from_numpy(x).requires_grad_(with_gradient) for x in inputs[:3]]
    out = module(*leaves)
    if not with_gradient:
        return (out.numpy(),)
    out.backward(torch.from_numpy(inputs.d_out))
    return tuple(x.numpy() for x in (out.detach(), *(leaf.grad for leaf in leaves)))


def _compare(
    task: str, passes: str, calls: Mapping[str, Call], inputs: Inputs, omega: Array, torch: Any, peer: Any
) -> None:
    """The reference against jit, and performer-pytorch's form against jit where it is given features without 1e-4."""
    results = {name: call() for name, call in calls.items() if name != PEER}
    if peer is not None:
        results[PEER] = _theirs(torch, partial(_without_epsilons, torch, peer, omega, task), inputs, passes)
    for name, arrays in results.items():
        for what, got, want in zip(("out", "d_q", "d_k", "d_v"), arrays, results["jit"], strict=False):
            error = abs(got - want).max() / abs(want).max()
            if not error < TOLERANCE:
                raise RuntimeError(f"{task}, {passes}: {name} and jit differ in {what} by {error:.1e} of its largest")


def _without_epsilons(torch: Any, peer: Any, omega: Array, task: str, q: Any, k: Any, v: Any) -> Any:
    """What ``FastAttention`` does, but for the small numbers that it adds."""
    directions = torch.from_numpy(omega)
    phi_q = peer.softmax_kernel(q, projection_matrix=directions, is_query=True, eps=0.0)
    phi_k = peer.softmax_kernel(k, projection_matrix=directions, is_query=False, eps=0.0)
    if task == CAUSAL:
        return peer.causal_linear_attention_noncuda(phi_q, phi_k, v, eps=0.0)
    return peer.linear_attention(phi_q, phi_k, v)


def _time(task: str, passes: str, size: int, calls: Mapping[str, Call], repeats: int) -> list[Row]:
    """A row for each call."""
    return [Row(task, passes, size, name, *times) for name, times in against_jit(calls, repeats).items()]


# --- Showing --------------------------------------------------------------------------------------------------------


def table(results: Results) -> str:
    """The comparison as a Markdown table, a line a task and length, and below it what stands in it."""
    others = [name for name in LOOKS if name != "jit" and any(row.name == name for row in results.rows)]
    lines = [
        f"| {' | '.join(['keys', 'passes', 'N', 'jit, ms', *others])} |",
        f"| --- | --- | {' | '.join(['---:'] * (2 + len(others)))} |",
    ]
    settings: dict[tuple[str, str, int], dict[str, Row]] = {}
    for row in results.rows:
        settings.setdefault(row[:3], {})[row.name] = row
    for (task, passes, size), found in settings.items():
        time = f"{found['jit'].median_ms:.1f}"
        cells = (f"{row.ratio_median:.2f} ({row.ratio_min:.2f})" if row else "" for row in map(found.get, others))
        lines.append(f"| {' | '.join([task, passes, str(size), time, *cells])} |")
    peers = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    compared = f"{peers}." if peers else f"{PEER} is not installed ({NEEDS}): not compared."
    setting = f"B = 1, H = {results.heads}, D = M = {results.width}, m = {results.features}, float32, one thread"
    told = f"{results.repeats} rounds. jit: CPU time, median; the others: times jit's, median (least)"
    lines += ["", f"{setting}, {told}. {compared}"]
    return "\n".join(lines)


def draw(results: Results) -> Figure:
    """Time a token against length, forward and with the backward pass; causal dashed."""
    figure, axes = style.figure(1, 2, height=0.45, sharey=True)
    lengths = sorted({row.size for row in results.rows})
    for axis, passes in zip(axes, PASSES, strict=True):
        for name, (colour, marker) in LOOKS.items():
            for task, line in ((ALL, "-"), (CAUSAL, "--")):
                chosen = [row for row in results.rows if (row.task, row.passes, row.name) == (task, passes, name)]
                if chosen:
                    points = [(row.size, 1e3 * row.median_ms / row.size) for row in chosen]
                    axis.plot(*zip(*points, strict=True), marker + line, color=colour, label=f"{name}, {task}")
        axis.set(title=passes, xlabel="N = L", xscale="log", yscale="log")
        axis.set_xticks(lengths, [str(n) for n in lengths])
        axis.minorticks_off()
        axis.yaxis.set_major_formatter("{x:g}")
    axes[0].set_ylabel("µs a token, all heads, one thread")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, handlelength=3.5)
    return figure
