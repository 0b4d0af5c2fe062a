"""Performer attention beside performer-pytorch, on one thread of the CPU, in float32 at batch size 1.

Both are given the same directions and positive features. performer-pytorch without CUDA writes out the state of every
position of a chunk, ``(N / 128, m, M)`` numbers a head, and keeps all of them where there is a gradient: its causal
backward pass is left out above 1024 tokens. Its features have ``1e-4`` added after the stabiliser, and its causal ones
see the maximum over later keys. What is timed has both; what results are compared with is the same code with 0 in place
of the ``1e-4``.

`harness` says how time is measured.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from linattn_ref.attention import feature_maps, performer
from linattn_ref.attention.arguments import Array
from linattn_ref.experiments.benches import harness
from linattn_ref.experiments.benches.bench_linear_peers import Inputs
from linattn_ref.experiments.benches.harness import BOTH, FORWARD, PASSES, PER_TOKEN, TOLD, Call, Curve, per_token
from linattn_ref.experiments.measuring.timing import one_thread
from linattn_ref.experiments.publishing import style
from linattn_ref.kernels import jit, reference

__all__ = ["Results", "compute", "draw", "table"]

PEER = "performer-pytorch"
CAUSAL, ALL = "causal", "all keys"
BOTH_LONGEST = 1024  # of performer-pytorch's causal backward pass: there it keeps 4 GB
TOLERANCE = 1e-3  # of the largest number; some 10^4 roundings of float32: exponents of up to 10^2 in both
LOOKS = {"jit": (style.BLUE, "o"), "reference": (style.GREY, "^"), PEER: (style.VERMILLION, "D")}


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

    Raises
    ------
    ValueError
        A count below 1.
    RuntimeError
        Two of them disagree.
    """
    harness.check_counts(lengths=lengths, heads=heads, width=width, features=features, repeats=repeats)
    torch, peer = harness.find("torch"), find_peer()
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    with one_thread(torch):
        for length in lengths:
            inputs = Inputs(*rng.standard_normal((4, 1, heads, length, width)).astype(np.float32))
            omega = feature_maps.orthogonal_gaussian(features, width, rng, dtype=np.float32)
            for task in (ALL, CAUSAL):
                for passes in PASSES:
                    too_long = task == CAUSAL and passes == BOTH and length > BOTH_LONGEST
                    given = inputs, omega, task, passes, torch, None if too_long else peer
                    harness.compare(f"{task}, {passes}", _comparable(*given), TOLERANCE)
                    rows += harness.time(Row, (task, passes, length), _calls(*given), repeats)
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
        module = _module(torch, peer, omega, task)
        calls[PEER] = partial(harness.in_torch, torch, module, inputs[:3], inputs.d_out, passes == BOTH)
    return calls


def _ours(room: Any, inputs: Inputs, omega: Array, task: str, passes: str) -> Sequence[Array]:
    q, k, v, d_out = inputs
    out, saved = performer.forward(q, k, v, omega, causal=task == CAUSAL, kernels=room)
    return (out,) if passes == FORWARD else (out, *performer.backward(d_out, saved)[:3])


def _module(torch: Any, peer: Any, omega: Array, task: str) -> Any:
    """``FastAttention`` with our directions."""
    with contextlib.redirect_stdout(io.StringIO()):  # it says that it has no CUDA
        module = peer.FastAttention(omega.shape[1], len(omega), causal=task == CAUSAL)
    module.projection_matrix.copy_(torch.from_numpy(omega))
    return module


def _comparable(
    inputs: Inputs, omega: Array, task: str, passes: str, torch: Any, peer: Any
) -> dict[str, Sequence[Array]]:
    """Results by name; performer-pytorch's are of its form on features without 1e-4."""
    results = {name: call() for name, call in _calls(inputs, omega, task, passes, torch, None).items()}
    if peer is not None:
        form = partial(_without_epsilons, torch, peer, omega, task)
        results[PEER] = harness.in_torch(torch, form, inputs[:3], inputs.d_out, passes == BOTH)
    return results


def _without_epsilons(torch: Any, peer: Any, omega: Array, task: str, q: Any, k: Any, v: Any) -> Any:
    """What ``FastAttention`` does, but for the small numbers that it adds."""
    directions = torch.from_numpy(omega)
    phi_q = peer.softmax_kernel(q, projection_matrix=directions, is_query=True, eps=0.0)
    phi_k = peer.softmax_kernel(k, projection_matrix=directions, is_query=False, eps=0.0)
    if task == CAUSAL:
        return peer.causal_linear_attention_noncuda(phi_q, phi_k, v, eps=0.0)
    return peer.linear_attention(phi_q, phi_k, v)


# --- Showing --------------------------------------------------------------------------------------------------------


def table(results: Results) -> str:
    """The comparison as a Markdown table, a line a task and length, and below it what stands in it."""
    lines = harness.table(("keys", "passes", "N"), results.rows, LOOKS)
    setting = f"B = 1, H = {results.heads}, D = M = {results.width}, m = {results.features}, float32, one thread"
    note = f"{setting}, {results.repeats} rounds. {TOLD} {harness.compared(results.versions, [PEER])}"
    return "\n".join([*lines, "", note])


def draw(results: Results) -> Figure:
    """Performer attention on one thread of a CPU, eight heads of 64, 256 positive features, float32: time a token
    against length, over all keys and causal, forward and with the backward pass.
    """

    def curve(name: str, task: str, passes: str) -> Curve:
        colour, marker = LOOKS[name]
        chosen = [row for row in results.rows if (row.task, row.passes, row.name) == (task, passes, name)]
        look = marker + ("--" if task == CAUSAL else "-")
        return Curve(f"{name}, {task}", colour, look, [per_token(row, row.size) for row in chosen])

    panels = {passes: [curve(name, task, passes) for name in LOOKS for task in (ALL, CAUSAL)] for passes in PASSES}
    return harness.draw(panels, PER_TOKEN)
