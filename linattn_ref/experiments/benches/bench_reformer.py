"""LSH attention beside the one of Hugging Face's Reformer, on one thread of the CPU, in float32 at batch size 1.

Both are handed queries-and-keys and values: the projections that the peer's layer begins with are taken out, and the
one at the end is not part of it. Both hash, sort, attend within chunks and combine the rounds; the peer draws its
rotations in every call, which is part of its time, here they are an argument. Known differences, none of which takes
time worth mentioning: the peer's first chunk attends to the last one too, and a pair that meets in several rounds is
counted as often.

Before anything is timed the two are compared, in one round with the same buckets, where they agree but for the first
chunk. `harness` says how time is measured; each has its inputs in the layout that it takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from linattn_ref.attention import reformer
from linattn_ref.attention.arguments import Array
from linattn_ref.attention.lsh_hashing import Integers
from linattn_ref.experiments.benches import harness
from linattn_ref.experiments.benches.harness import BOTH, FORWARD, PASSES, PER_TOKEN, TOLD, Call, Curve, per_token
from linattn_ref.experiments.measuring.timing import one_thread
from linattn_ref.experiments.publishing import style
from linattn_ref.kernels import jit

__all__ = ["Results", "compute", "draw", "table"]

PEER = "transformers"
COLOURS = {"jit": style.BLUE, PEER: style.VERMILLION}
TOLERANCE = 1e-3  # of the largest number: the peer adds 1e-6 to the square of a key's length


class Row(NamedTuple):
    """One package at one setting."""

    length: int
    causal: bool
    passes: str  # one of PASSES
    name: str
    median_ms: float  # CPU time
    min_ms: float
    ratio_median: float  # its time over jit's in the same round
    ratio_min: float


class Results(NamedTuple):
    heads: int
    width: int  # D = M
    rounds: int
    chunk: int
    repeats: int
    versions: dict[str, str]  # of PyTorch and transformers, if they were there
    rows: tuple[Row, ...]


class Inputs(NamedTuple):
    qk: Array  # (H, N, D)
    v: Array  # (H, N, D)
    d_out: Array  # (H, N, D)


class Hash(NamedTuple):
    rotations: Array  # (rounds, D, buckets/2)
    chunk: int
    causal: bool


def compute(
    *,
    lengths: Sequence[int] = (1024, 4096),
    heads: int = 8,
    width: int = 64,
    rounds: int = 2,
    chunk: int = 64,
    repeats: int = 11,
    seed: int = 0,
) -> Results:
    """Time ``jit`` beside Hugging Face's layer, where it is installed; with ``2 N / chunk`` buckets, as that chooses.

    Parameters
    ----------
    lengths : sequence of int
        ``N``, multiples of ``chunk`` and more than it, as the peer needs.
    heads, width, rounds, chunk : int
    repeats : int
        Rounds of timing, after one that is not counted.
    seed : int

    Raises
    ------
    ValueError
        A count below 1, or a length that is not a multiple of the chunk.
    RuntimeError
        The two disagree.
    """
    harness.check_counts(heads=heads, width=width, rounds=rounds, chunk=chunk, repeats=repeats)
    for n in lengths:
        if n % chunk or n <= chunk:
            raise ValueError(f"lengths: expected multiples of the chunk, {chunk}, and more than one, got {n}")
    peer = find_peer()
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    with one_thread(peer and peer[0]):
        for n in lengths:
            inputs = Inputs(*rng.standard_normal((3, heads, n, width)).astype(np.float32))
            rotations = reformer.draw_rotations(rounds, width, 2 * n // chunk, rng, np.float32)
            for causal in (False, True):
                hashing = Hash(rotations, chunk, causal)
                if peer:
                    _compare(peer, inputs, hashing)
                for passes in PASSES:
                    rows += harness.time(Row, (n, causal, passes), _calls(peer, inputs, hashing, passes), repeats)
    return Results(heads, width, rounds, chunk, repeats, _versions(peer), tuple(rows))


def run_jit(inputs: Inputs, hashing: Hash, passes: str) -> Sequence[Array]:
    """``out``, and ``d_qk`` and ``d_v`` if they are asked for, ``(H, N, D)`` each."""
    out, saved = reformer.forward(inputs.qk, inputs.v, **hashing._asdict(), kernels=jit)
    return (out,) if passes == FORWARD else (out, *reformer.backward(inputs.d_out, saved))


# --- The peer -------------------------------------------------------------------------------------------------------


def find_peer() -> Any:
    """PyTorch and the module of transformers that has Reformer, or None where they are not installed."""
    try:
        import torch
        from transformers.models.reformer import modeling_reformer
    except ImportError:
        return None
    return torch, modeling_reformer


def peer_layer(peer: Any, hashing: Hash, heads: int, width: int) -> Any:
    """The peer's LSH attention without its projections: set ``query_key.given`` and ``value.given``, then call it."""
    torch, modeling = peer

    class Given(torch.nn.Module):  # type: ignore[name-defined]
        def forward(self, hidden_states: Any) -> Any:
            return self.given

    rounds, _, half = hashing.rotations.shape
    config = modeling.ReformerConfig(
        attention_head_size=width,
        num_attention_heads=heads,
        hidden_size=heads * width,
        lsh_attn_chunk_length=hashing.chunk,
        lsh_num_chunks_before=1,
        lsh_num_chunks_after=0,
        lsh_attention_probs_dropout_prob=0.0,
        num_buckets=2 * half,
        num_hashes=rounds,
        is_decoder=hashing.causal,
    )
    layer = modeling.LSHSelfAttention(config)
    layer.query_key, layer.value = Given(), Given()
    return layer


def run_peer(peer: Any, layer: Any, inputs: Inputs, passes: str, buckets: Integers | None = None) -> Sequence[Array]:
    """As :func:`run_jit`; with ``buckets (rounds, H, N)`` instead of its own hash, if given."""
    torch, (qk, v, d_out) = peer[0], map(_merge, inputs)
    given = {}
    if buckets is not None:
        rounds = np.arange(len(buckets))[:, None, None] * layer.num_buckets  # so that each round is sorted by itself
        given = {"buckets": torch.from_numpy((buckets + rounds).swapaxes(0, 1).reshape(1, *buckets.shape[1::-1], -1))}

    def attention(qk: Any, v: Any) -> Any:
        layer.query_key.given, layer.value.given = qk, v
        return layer(torch.empty(qk.shape, dtype=qk.dtype), **given).hidden_states

    results = harness.in_torch(torch, attention, (qk, v), d_out, passes == BOTH)
    return tuple(_split(x, len(inputs.qk)) for x in results)


def _merge(x: Array) -> Array:
    """``(H, N, D)`` as ``(1, N, H D)``."""
    return np.ascontiguousarray(x.swapaxes(0, 1)).reshape(1, x.shape[1], -1)


def _split(x: Array, heads: int) -> Array:
    return x.reshape(x.shape[1], heads, -1).swapaxes(0, 1)


def _versions(peer: Any) -> dict[str, str]:
    if peer is None:
        return {}
    import transformers

    return {"PyTorch": peer[0].__version__, PEER: transformers.__version__}


# --- Comparing and timing -------------------------------------------------------------------------------------------


def without_first_chunk(d_out: Array, order: Integers, chunk: int) -> Array:
    """``d_out (H, N, M)`` with the rows 0 whose tokens are in the first chunk of one round, ``order (H, 1, N)``."""
    d_out = d_out.copy()
    np.put_along_axis(d_out, order[:, 0, :chunk, None], 0, axis=1)
    return d_out


def _compare(peer: Any, inputs: Inputs, hashing: Hash) -> None:
    """One round with the same buckets; the first chunk, which attends to the last one in the peer, left out."""
    one = hashing._replace(rotations=hashing.rotations[:1])
    scale = 1.0  # the peer's keys have length sqrt(D) before it divides by that
    out, saved = reformer.forward(inputs.qk, inputs.v, **one._asdict(), scale=scale, kernels=jit)
    d_out = without_first_chunk(inputs.d_out, saved.order, hashing.chunk)
    kept = without_first_chunk(np.ones_like(d_out), saved.order, hashing.chunk)
    buckets = reformer.buckets(inputs.qk, one.rotations).swapaxes(0, 1).astype(np.int64)  # (1, H, N)
    layer = peer_layer(peer, one, len(inputs.qk), inputs.qk.shape[-1])
    their_out, *theirs = run_peer(peer, layer, inputs._replace(d_out=d_out), BOTH, buckets)
    results = {"jit": (out * kept, *reformer.backward(d_out, saved)), PEER: (their_out * kept, *theirs)}
    harness.compare(f"causal={hashing.causal}", results, TOLERANCE, outputs=("out", "d_qk", "d_v"))


def _calls(peer: Any, inputs: Inputs, hashing: Hash, passes: str) -> dict[str, Call]:
    """By name."""
    calls: dict[str, Call] = {"jit": partial(run_jit, inputs, hashing, passes)}
    if peer:
        layer = peer_layer(peer, hashing, len(inputs.qk), inputs.qk.shape[-1])

        def call() -> Sequence[Array]:
            with peer[0].set_grad_enabled(passes == BOTH):
                return run_peer(peer, layer, inputs, passes)

        calls[PEER] = call
    return calls


# --- Showing --------------------------------------------------------------------------------------------------------


def table(results: Results) -> str:
    """The comparison as a Markdown table, a line a setting, and below it what stands in it."""
    lines = harness.table(("N", "causal", "passes"), results.rows, COLOURS)
    note = (
        f"B = 1, H = {results.heads}, D = M = {results.width}, {results.rounds} hash rounds, chunks of "
        f"{results.chunk}, 2 N / {results.chunk} buckets, float32, one thread, {results.repeats} rounds of timing. "
        f"{TOLD} Without projections. {harness.compared(results.versions, [PEER])}"
    )
    return "\n".join([*lines, "", note])


def draw(results: Results) -> Figure:
    """Reformer's LSH attention on one thread of a CPU, 8 heads of 64, two hash rounds, chunks of 64, float32: time
    a token against length, forward and with the backward pass. Lines: all tokens; dashed: causal.
    """

    def curve(name: str, causal: bool, passes: str) -> Curve:
        rows = [row for row in results.rows if row[1:4] == (causal, passes, name)]
        label, look = (f"{name}, causal", "o--") if causal else (name, "o-")
        return Curve(label, COLOURS[name], look, [per_token(row, row.length) for row in rows])

    panels = {
        passes: [curve(name, causal, passes) for name in COLOURS for causal in (False, True)] for passes in PASSES
    }
    return harness.draw(panels, PER_TOKEN, log=False)
