"""Attention with sparse patterns beside HuggingFace's and fast-transformers', on one thread of the CPU.

`engine` says how time is measured. PyTorch's attention to all pairs is another function, and its results are not
compared; it shows what the pattern saves.

Longformer and BigBird are HuggingFace's modules (``transformers``), of which the attention alone runs: their linear
projections are replaced by functions that return the given queries, keys and values, and BigBird's random blocks by
the given ones, which its heads share. Windows alone are fast-transformers' (``pytorch-fast-transformers``) two products
in C++ with a softmax between. Inputs are brought into the order that each package wants before the clock starts.

A window is given as the keys on each side: ``window=256`` is HuggingFace's ``attention_window=512`` and
fast-transformers' ``local_context=513``.
"""

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.sparse import bigbird, local, longformer, part
from linattn_ref.experiments.benches import engine
from linattn_ref.experiments.benches.engine import BOTH, PASSES, TOLD, Call
from linattn_ref.experiments.benches.peers import FAST, in_torch, packed, unpacked, versions
from linattn_ref.experiments.publishing.kit import Array, Figure, Ints, NDArray, Results, style

__all__ = ["compute", "draw", "table"]

GLOBAL_TOKEN = 0
ALL_PAIRS = "pytorch, all pairs"
TITLES = {"local": "sliding window", "longformer": "Longformer", "bigbird": "BigBird"}
PAGES = {"local": (local, 3), "longformer": (longformer, 6), "bigbird": (bigbird, 3)}  # and how many arrays it takes
LOOKS = {
    "jit": (style.BLUE, "o-"),
    "reference": (style.GREY, "o-"),
    "fast-transformers": (style.ORANGE, "s-"),
    "transformers": (style.VERMILLION, "s-"),
    ALL_PAIRS: (style.BLACK, "^:"),
}
OUTPUTS = ("out", "d_q", "d_k", "d_v", "d_q_global", "d_k_global", "d_v_global")
TOLERANCE = 1e-4  # of the largest number: some 1000 roundings in float32


class Inputs(NamedTuple):
    """One sequence: everything ``(1, H, N, D)``."""

    q: Array
    k: Array
    v: Array
    q_global: Array
    k_global: Array
    v_global: Array
    d_out: Array


@engine.bench("heads", "width", "window", "block", "drawn", "repeats", settings={"lengths": 6})
def compute(
    *,
    lengths: Ints = (1024, 2048, 4096),
    heads: int = 8,
    width: int = 64,
    window: int = 256,
    block: int = 64,
    drawn: int = 3,
    repeats: int = 5,
    seed: int = 0,
) -> engine.Measured:
    """Compare local, Longformer's and BigBird's attention with other packages on one thread, if installed.

    CPU time, the kernels in turn in one process.

    Parameters
    ----------
    lengths : sequence of int
        ``N = L``. HuggingFace's modules take part where it is a multiple of ``2 window``, or of ``block``.
    heads : int
        ``H``.
    width : int
        ``D = M``.
    window : int
        Keys on each side, of ``local`` and ``longformer``; the latter has one global token besides.
    block : int
        Of BigBird.
    drawn : int
        Random blocks that each has beside three of window and two global.
    repeats : int
        Rounds, after one that is not counted.
    seed : int
        Of all that is drawn.

    Raises
    ------
    ValueError
        A count below 1, or a length with fewer blocks than are to be drawn.
    RuntimeError
        Two kernels disagree.
    """
    found, rng = find(), np.random.default_rng(seed)
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
            page, count = PAGES[mechanism]
            pairs.append((mechanism, length, count_pairs(mechanism, length, own)))
            for passes in PASSES:
                calls = engine.ours(page, inputs[:count], inputs.d_out, passes, **own)
                calls |= calls_of_others(mechanism, found, inputs, own, passes == BOTH)
                setting = {"mechanism": mechanism, "length": length, "passes": passes}
                compared: dict[str, Any] = {"tolerance": TOLERANCE, "apart": [ALL_PAIRS], "outputs": OUTPUTS}
                yield from engine.measure(setting, calls, repeats, **compared)
    return {"versions": found.versions, "pairs": tuple(pairs)}


def count_pairs(mechanism: str, length: int, options: dict[str, Any]) -> int:
    """The pairs that a mechanism allows; the rows of Longformer's global token are no part of it."""
    if mechanism == "bigbird":
        options = {"window_blocks": 3, "global_blocks": (0, -1), **options}
    lengths = (length, length) if mechanism == "local" else (length,)
    return part.count_pairs(PAGES[mechanism][0].parts_of(*lengths, **options))


# --- Other packages ---------------------------------------------------------------------------------------------------


class Peers(NamedTuple):
    """The modules; None for what is not installed."""

    torch: Any
    longformer: Any
    bigbird: Any
    local: Any
    versions: dict[str, str]


def find() -> Peers:
    """What there is to compare with."""
    models = "transformers.models.longformer.modeling_longformer", "transformers.models.big_bird.modeling_big_bird"
    torch, longformer, bigbird, local = map(engine.find, ("torch", *models, "fast_transformers.local_product"))
    got = {"transformers": longformer and engine.find("transformers"), FAST: local and engine.find("fast_transformers")}
    return Peers(torch, longformer, bigbird, local, versions(torch, got))


def calls_of_others(name: str, peers: Peers, inputs: Inputs, options: dict[str, Any], both: bool) -> dict[str, Call]:
    """Of a mechanism, by their own names, those that can take this length."""
    found, length = {}, inputs.q.shape[-2]
    if name == "local" and peers.local:
        found[FAST] = windows(peers, inputs, options["window"], both)
    if name == "longformer" and peers.longformer and length % (2 * options["window"]) == 0:
        found["transformers"] = longformer_peer(peers, inputs, options["window"], both)
    if name == "bigbird" and peers.bigbird and length % options["block"] == 0:
        found["transformers"] = bigbird_peer(peers, inputs, **options, both=both)
    if peers.torch:  # softmax attention without any pattern
        attention = peers.torch.nn.functional.scaled_dot_product_attention
        found[ALL_PAIRS] = partial(in_torch, peers.torch, attention, [*inputs[:3]], inputs.d_out, both)
    return found


# --- fast-transformers ---------------------------------------------------------------------------------------------


def windows(peers: Peers, inputs: Inputs, window: int, both: bool) -> Call:
    """fast-transformers' local attention. It takes an ``(N, N)`` mask of zeros, made beforehand."""
    torch, local = peers.torch, peers.local
    n, scale = inputs.q.shape[-2], inputs.q.shape[-1] ** -0.5
    mask, lengths = torch.zeros(n, n), torch.full((1,), n)

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = local.local_dot_product(q, k, mask, lengths, 2 * window + 1)  # (1, H, N, 2 window + 1)
        return local.local_weighted_average(torch.softmax(scale * scores, -1), v)

    return partial(in_torch, torch, attention, [*inputs[:3]], inputs.d_out, both)


# --- HuggingFace ---------------------------------------------------------------------------------------------------


def longformer_peer(peers: Peers, inputs: Inputs, window: int, both: bool) -> Call:
    """``LongformerSelfAttention`` with one global token; its ``attention_window`` is both sides together."""
    torch, (_, heads, n, width) = peers.torch, inputs.q.shape
    *arrays, d_out = (packed(x).swapaxes(0, 1) for x in inputs)  # (N, 1, H D) each, its own order
    sizes = {"hidden_size": heads * width, "num_attention_heads": heads, "attention_window": [2 * window]}
    config = engine.find("transformers").LongformerConfig(**sizes, attention_probs_dropout_prob=0.0)
    module = peers.longformer.LongformerSelfAttention(config, 0)
    mask = torch.zeros(1, n)
    mask[0, GLOBAL_TOKEN] = 10_000  # its mark for a global token
    hidden = torch.zeros(1, n, heads * width)  # looked at for its shape alone
    options = {"attention_mask": mask, "is_index_masked": mask < 0, "is_index_global_attn": mask > 0}

    projections = ("query", "key", "value", "query_global", "key_global", "value_global")
    for name in projections:
        delattr(module, name)

    def attention(*tensors: Any) -> Any:
        for name, x in zip(projections, tensors, strict=True):
            setattr(module, name, partial(_rows, x, "query" in name))
        return module(hidden, **options, is_global_attn=True)[0].transpose(0, 1)  # (N, 1, H D)

    call = partial(in_torch, torch, attention, arrays, d_out, both)
    return lambda: [unpacked(x.swapaxes(0, 1), heads) for x in call()]


def _rows(x: Any, overwritten: bool, hidden: Any) -> Any:
    """As many rows as ``hidden`` has, of which row 0 is the global token; a copy where they are divided in place."""
    rows = x[: len(hidden)]
    return rows.clone() if overwritten else rows


def bigbird_peer(peers: Peers, inputs: Inputs, block: int, random_blocks: NDArray[np.intp], both: bool) -> Call:
    """``BigBirdBlockSparseAttention``: three blocks of window, the first and the last global, the random ones given."""
    torch, (_, heads, n, width) = peers.torch, inputs.q.shape
    drawn = random_blocks[1:-1]  # (blocks - 2, r)
    sizes = {"hidden_size": heads * width, "num_attention_heads": heads, "max_position_embeddings": n}
    sizes |= {"block_size": block, "num_random_blocks": drawn.shape[1]}
    config = engine.find("transformers").BigBirdConfig(**sizes)
    module, count = peers.bigbird.BigBirdBlockSparseAttention(config).eval(), drawn.shape[1]
    module._bigbird_block_rand_mask = lambda *args, **kwargs: drawn
    module._bigbird_block_rand_mask_with_head = lambda *args, **kwargs: [drawn] * heads
    masks = peers.bigbird.BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(1, n), block)
    blocked, band_mask, from_mask, to_mask = masks
    options = {"band_mask": band_mask, "from_mask": from_mask, "to_mask": to_mask}
    options |= {"from_blocked_mask": blocked, "to_blocked_mask": blocked, "n_heads": heads, "n_rand_blocks": count}
    options |= {"attention_head_size": width, "from_block_size": block, "to_block_size": block, "batch_size": 1}
    options |= {"from_seq_len": n, "to_seq_len": n, "seed": 0, "plan_from_length": n, "plan_num_rand_blocks": count}
    if "output_attentions" in inspect.signature(module.bigbird_block_sparse_attention).parameters:
        options["output_attentions"] = False

    def attention(q: Any, k: Any, v: Any) -> Any:
        return module.bigbird_block_sparse_attention(q, k, v, **options)[0].reshape(n, 1, -1)  # (N, 1, H D)

    call = partial(in_torch, torch, attention, [*inputs[:3]], packed(inputs.d_out).swapaxes(0, 1), both)

    def in_heads() -> Sequence[Array]:
        out, *gradients = call()
        return unpacked(out.swapaxes(0, 1), heads), *gradients

    return in_heads


# --- Showing ----------------------------------------------------------------------------------------------------------


def table(results: Results) -> str:
    """The comparison as a Markdown table, a line per setting, and below it what stands in it."""
    share = {(mechanism, length): f"{count / length**2:.1%}" for mechanism, length, count in results.pairs}
    header = ("mechanism", "N = L", "passes", "pairs")
    lines = engine.table(header, results.rows, LOOKS, cells=lambda setting: (*setting, share[setting[:2]]))
    setting = (
        f"B = 1, H = {results.heads}, D = M = {results.width}, float32, one thread, {results.repeats} rounds; "
        f"window {results.window} on each side; blocks of {results.block}, {results.drawn} random."
    )
    compared = engine.compared(results.versions, ("PyTorch", "transformers", FAST))
    return engine.page(lines, note=[setting, TOLD, "Attention alone, without projections.", compared])


def draw(results: Results) -> Figure:
    """Attention with sparse patterns on one thread of a CPU, forward and backward, batch size 1: time per token
    against the length. It is compared with the packages that have the same pattern, and with PyTorch's attention to
    all pairs.
    """

    lines: engine.Lines = {name: (*look, {"kernel": name}) for name, look in LOOKS.items()}
    panels = {title: {"mechanism": name, "passes": BOTH} for name, title in TITLES.items()}
    return engine.draw(results, panels, lines, "µs per token, both passes")
