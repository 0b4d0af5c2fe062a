"""Performer attention beside performer-pytorch, on one thread of the CPU, in float32 at batch size 1.

Both are given the same directions and positive features. performer-pytorch without CUDA writes out the state of every
position of a chunk, ``(N / 128, m, M)`` numbers per head, and keeps all of them where there is a gradient: its causal
backward pass is left out above 1024 tokens. Its features have ``1e-4`` added after the stabiliser, and its causal ones
see the maximum over later keys. What is timed has both; what results are compared with is the same code with 0 in place
of the ``1e-4``.

`engine` says how time is measured.
"""

import contextlib
import io
import warnings
from functools import partial
from typing import Any

import numpy as np

from linattn_ref.attention import performer
from linattn_ref.attention.features import feature_maps
from linattn_ref.experiments.benches import engine, peers
from linattn_ref.experiments.benches.engine import BOTH, BY_PASSES, PASSES, TOLD
from linattn_ref.experiments.publishing.kit import Array, Figure, Ints, Results, style

__all__ = ["compute", "draw", "table"]

PEER = "performer-pytorch"
CAUSAL, ALL = "causal", "all keys"
BOTH_LONGEST = 1024  # of performer-pytorch's causal backward pass: there it keeps 4 GB
TOLERANCE = 1e-3  # of the largest number; some 10^4 roundings of float32: exponents of up to 10^2 in both
LOOKS = {"jit": (style.BLUE, "o"), "reference": (style.GREY, "^"), PEER: (style.VERMILLION, "D")}


@engine.bench("heads", "width", "features", "repeats", settings={"lengths": 4})
def compute(
    *,
    lengths: Ints = (1024, 4096),
    heads: int = 8,
    width: int = 64,
    features: int = 256,
    repeats: int = 5,
    seed: int = 0,
) -> engine.Measured:
    """Compare the Performer with performer-pytorch on one thread, if that can be imported.

    CPU time, the two in turn in one process.

    Parameters
    ----------
    lengths : sequence of int
        ``N = L``.
    heads : int
        ``H``.
    width : int
        ``D = M``.
    features : int
        ``m``, random features.
    repeats : int
        Rounds, after one that is not counted.
    seed : int
        Of all that is drawn.

    Raises
    ------
    ValueError
        A count below 1.
    RuntimeError
        Two of them disagree.
    """
    torch, peer = engine.find("torch"), find_peer()
    rng = np.random.default_rng(seed)
    for length in lengths:
        *qkv, d_out = rng.standard_normal((4, 1, heads, length, width)).astype(np.float32)
        omega = feature_maps.orthogonal_gaussian(features, width, rng, dtype=np.float32)
        for task in (ALL, CAUSAL):
            for passes in PASSES:
                calls = engine.ours(performer, (*qkv, omega), d_out, passes, causal=task == CAUSAL)
                results = {name: call() for name, call in calls.items()}
                if peer and not (task == CAUSAL and passes == BOTH and length > BOTH_LONGEST):
                    forms = _module(torch, peer, omega, task), partial(_without_epsilons, torch, peer, omega, task)
                    timed, exact = (partial(peers.in_torch, torch, form, qkv, d_out, passes == BOTH) for form in forms)
                    calls[PEER], results[PEER] = timed, exact()
                setting = {"task": task, "passes": passes, "size": length}
                compared: dict[str, Any] = {"tolerance": TOLERANCE, "expected": results}
                yield from engine.measure(setting, calls, repeats, called="name", **compared)
    return {"versions": {"PyTorch": torch.__version__, PEER: peers.version(PEER)} if peer else {}}


def find_peer() -> Any:
    """The module of performer-pytorch, or None where it or what it needs is not installed."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # distutils, and PyTorch's operators that are deprecated
        return engine.find("performer_pytorch.performer_pytorch")


def _module(torch: Any, peer: Any, omega: Array, task: str) -> Any:
    """``FastAttention`` with our directions."""
    with contextlib.redirect_stdout(io.StringIO()):  # it says that it has no CUDA
        module = peer.FastAttention(omega.shape[1], len(omega), causal=task == CAUSAL)
    module.projection_matrix.copy_(torch.from_numpy(omega))
    return module


def _without_epsilons(torch: Any, peer: Any, omega: Array, task: str, q: Any, k: Any, v: Any) -> Any:
    """What ``FastAttention`` does, but for the small numbers that it adds."""
    directions = torch.from_numpy(omega)
    phi_q = peer.softmax_kernel(q, projection_matrix=directions, is_query=True, eps=0.0)
    phi_k = peer.softmax_kernel(k, projection_matrix=directions, is_query=False, eps=0.0)
    if task == CAUSAL:
        return peer.causal_linear_attention_noncuda(phi_q, phi_k, v, eps=0.0)
    return peer.linear_attention(phi_q, phi_k, v)


def table(results: Results) -> str:
    """The comparison as a Markdown table, a line per task and length, and below it what stands in it."""
    lines = engine.table(("keys", "passes", "N"), results.rows, LOOKS)
    setting = f"B = 1, H = {results.heads}, D = M = {results.width}, m = {results.features}, float32, one thread"
    note = f"{setting}, {results.repeats} rounds.", TOLD, engine.compared(results.versions, [PEER])
    return engine.page(lines, note=note)


def draw(results: Results) -> Figure:
    """Performer attention with positive features on one thread of a CPU, float32: time per token against length,
    over all keys and causal, forward and with the backward pass.
    """

    lines: engine.Lines = {
        f"{name}, {task}": (colour, marker + look, {"name": name, "task": task})
        for name, (colour, marker) in LOOKS.items()
        for task, look in ((ALL, "-"), (CAUSAL, "--"))
    }
    return engine.draw(results, BY_PASSES, lines)
