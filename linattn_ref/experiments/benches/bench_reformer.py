"""LSH attention beside the one of Hugging Face's Reformer, on one thread of the CPU, in float32 at batch size 1.

Both are passed queries-and-keys and values: the projections that the peer's layer begins with are taken out, and the
one at the end is not part of it. Both hash, sort, attend within chunks and combine the rounds; the peer draws its
rotations in every call, which is part of its time, here they are an argument. Known differences, none of which takes
time worth mentioning: the peer's first chunk attends to the last one too, and a pair that meets in several rounds is
counted as often.

Before anything is timed the two are compared, in one round with the same buckets, where they agree but for the first
chunk. `engine` says how time is measured; each has its inputs in the layout that it takes.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention import reformer
from linattn_ref.attention.parts.lsh_hashing import Integers
from linattn_ref.experiments.benches import engine, peers
from linattn_ref.experiments.benches.engine import BOTH, BY_PASSES, PASSES, TOLD, Call
from linattn_ref.experiments.publishing.kit import Array, Figure, Ints, Results, style
from linattn_ref.kernels import jit

__all__ = ["compute", "draw", "table"]

PEER = "transformers"
COLOURS = {"jit": style.BLUE, PEER: style.VERMILLION}
TOLERANCE = 1e-3  # of the largest number: the peer adds 1e-6 to the square of a key's length


class Inputs(NamedTuple):
    qk: Array  # (H, N, D)
    v: Array  # (H, N, D)
    d_out: Array  # (H, N, D)


class Hash(NamedTuple):
    rotations: Array  # (rounds, D, buckets/2)
    chunk: int
    causal: bool


@engine.bench("heads", "width", "rounds", "chunk", "repeats", settings={"lengths": 4})
def compute(
    *,
    lengths: Ints = (1024, 4096),
    heads: int = 8,
    width: int = 64,
    rounds: int = 2,
    chunk: int = 64,
    repeats: int = 11,
    seed: int = 0,
) -> engine.Measured:
    """Compare LSH attention with Hugging Face's Reformer on one thread, if that is installed.

    CPU time, the two in turn in one process.

    Parameters
    ----------
    lengths : sequence of int
        ``N``, multiples of ``chunk`` and more than it, as the peer needs.
    heads : int
        ``H``.
    width : int
        ``D = M``.
    rounds : int
        Of hashing.
    chunk : int
        Tokens per chunk.
    repeats : int
        Rounds of timing, after one that is not counted.
    seed : int
        Of all that is drawn.

    Raises
    ------
    ValueError
        A count below 1, or a length that is not a multiple of the chunk.
    RuntimeError
        The two disagree.
    """
    for n in lengths:
        if n % chunk or n <= chunk:
            raise ValueError(f"lengths: expected multiples of the chunk, {chunk}, and more than one, got {n}")
    peer, rng = find_peer(), np.random.default_rng(seed)
    for n in lengths:
        inputs = Inputs(*rng.standard_normal((3, heads, n, width)).astype(np.float32))
        rotations = reformer.draw_rotations(rounds, width, 2 * n // chunk, rng, np.float32)
        for causal in (False, True):
            hashing = Hash(rotations, chunk, causal)
            if peer:
                _compare(peer, inputs, hashing)
            for passes in PASSES:
                ours = partial(engine.run, reformer, inputs[:2], inputs.d_out, passes, **hashing._asdict(), kernels=jit)
                calls: dict[str, Call] = {"jit": ours}
                if peer:
                    calls[PEER] = partial(run_peer, peer, peer_layer(peer, hashing, heads, width), inputs, passes)
                setting = {"length": n, "causal": causal, "passes": passes}
                yield from engine.measure(setting, calls, repeats, called="name")
    return {"versions": peers.versions(peer[0], {PEER: engine.find(PEER)}) if peer else {}}


# --- The peer -------------------------------------------------------------------------------------------------------


def find_peer() -> Any:
    """PyTorch and the module of transformers that has Reformer, or None where they are not installed."""
    torch, modeling = engine.find("torch"), engine.find("transformers.models.reformer.modeling_reformer")
    return (torch, modeling) if torch and modeling else None


def peer_layer(peer: Any, hashing: Hash, heads: int, width: int) -> Any:
    """The peer's LSH attention without its projections ``query_key`` and ``value``."""
    modeling = peer[1]
    rounds, _, half = hashing.rotations.shape
    sizes = {"attention_head_size": width, "num_attention_heads": heads, "hidden_size": heads * width}
    sizes |= {"lsh_attn_chunk_length": hashing.chunk, "lsh_num_chunks_before": 1, "lsh_num_chunks_after": 0}
    sizes |= {"num_buckets": 2 * half, "num_hashes": rounds}
    options = {"lsh_attention_probs_dropout_prob": 0.0, "is_decoder": hashing.causal}
    layer = modeling.LSHSelfAttention(modeling.ReformerConfig(**sizes, **options))
    del layer.query_key, layer.value
    return layer


def run_peer(peer: Any, layer: Any, inputs: Inputs, passes: str, buckets: Integers | None = None) -> Sequence[Array]:
    """``out``, and ``d_qk`` and ``d_v`` if they are asked for, ``(H, N, D)`` each.

    With ``buckets (rounds, H, N)`` instead of its own hash, if given.
    """
    torch, (qk, v, d_out) = peer[0], (peers.packed(x[None]) for x in inputs)
    given = {}
    if buckets is not None:
        rounds = np.arange(len(buckets))[:, None, None] * layer.num_buckets  # so that each round is sorted by itself
        given = {"buckets": torch.from_numpy((buckets + rounds).swapaxes(0, 1).reshape(1, *buckets.shape[1::-1], -1))}

    def attention(qk: Any, v: Any) -> Any:
        layer.query_key, layer.value = lambda _: qk, lambda _: v
        return layer(torch.empty(qk.shape, dtype=qk.dtype), **given).hidden_states

    results = peers.in_torch(torch, attention, (qk, v), d_out, passes == BOTH)
    return tuple(peers.unpacked(x, len(inputs.qk))[0] for x in results)


# --- Comparing ------------------------------------------------------------------------------------------------------


def without_first_chunk(d_out: Array, order: Integers, chunk: int) -> Array:
    """``d_out (H, N, M)`` with the rows 0 whose tokens are in the first chunk of one round, ``order (H, 1, N)``."""
    d_out = d_out.copy()
    np.put_along_axis(d_out, order[:, 0, :chunk, None], 0, axis=1)
    return d_out


def _compare(peer: Any, inputs: Inputs, hashing: Hash) -> None:
    """One round with the same buckets; the first chunk, which attends to the last one in the peer, left out."""
    one = hashing._replace(rotations=hashing.rotations[:1])
    # A scale of 1: the peer's keys have length sqrt(D) before it divides by that
    out, saved = reformer.forward(inputs.qk, inputs.v, **one._asdict(), scale=1.0, kernels=jit)
    d_out = without_first_chunk(inputs.d_out, saved.order, hashing.chunk)
    kept = without_first_chunk(np.ones_like(d_out), saved.order, hashing.chunk)
    buckets = reformer.buckets(inputs.qk, one.rotations).swapaxes(0, 1).astype(np.int64)  # (1, H, N)
    layer = peer_layer(peer, one, len(inputs.qk), inputs.qk.shape[-1])
    their_out, *theirs = run_peer(peer, layer, inputs._replace(d_out=d_out), BOTH, buckets)
    results = {"jit": (out * kept, *reformer.backward(d_out, saved)), PEER: (their_out * kept, *theirs)}
    engine.compare(f"causal={hashing.causal}", results, TOLERANCE, outputs=("out", "d_qk", "d_v"))


# --- Showing --------------------------------------------------------------------------------------------------------


def table(results: Results) -> str:
    """The comparison as a Markdown table, a line per setting, and below it what stands in it."""
    lines = engine.table(("N", "causal", "passes"), results.rows, COLOURS)
    setting = (
        f"B = 1, H = {results.heads}, D = M = {results.width}, {results.rounds} hash rounds, chunks of "
        f"{results.chunk}, 2 N / {results.chunk} buckets, float32, one thread, {results.repeats} rounds of timing."
    )
    return engine.page(lines, note=[setting, TOLD, "Without projections.", engine.compared(results.versions, [PEER])])


def draw(results: Results) -> Figure:
    """Reformer's LSH attention on one thread of a CPU, float32: time per token against length, forward and with the
    backward pass. Lines: all tokens; dashed: causal.
    """

    return engine.draw(results, BY_PASSES, engine.causal_lines(COLOURS, "name"), log=False)
