"""Every mechanism in place of softmax attention in a pretrained network: error against cost.

The network's ``Q``, ``K`` and ``V`` stay as they are, and nothing is fitted or trained. Each mechanism has one size
that buys accuracy (`WAYS`): a rank, a number of features, a window. Its cost is counted, in multiply-adds of the matrix
products that its own code does, over those of softmax attention. Its matrix is what it makes of the identity,

    P~ = forward(q, k, I)

since all of them are linear in the values. Errors are relative, in the Frobenius norm, against the attention that the
mechanism stands for (`TARGETS`). That is softmax attention for most; for one that is causal, causal softmax attention;
and for LSH attention, where queries are keys, softmax attention with ``K = Q / |Q|``, nobody attending to itself.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from linattn_ref.attention import softmax
from linattn_ref.attention.features.feature_maps_random import unit
from linattn_ref.attention.sparse import patterns
from linattn_ref.experiments.measuring import heads as measured
from linattn_ref.experiments.measuring import mechanisms
from linattn_ref.experiments.measuring.counting import count
from linattn_ref.experiments.measuring.heads import Heads, Random, Source, relative_error, spread, truncated_svd
from linattn_ref.experiments.publishing.kit import Array, Axes, Figure, Generator, Results, labels, style, with_range

__all__ = ["TARGETS", "WAYS", "Way", "compute", "draw", "measure"]

BEHIND = "#D8D8D8"  # lines of the other families
# A column of the figure each: its title, and its lines
FAMILIES = {
    "fewer keys": ("linformer", "nystromformer", "long_short"),
    "features": ("linear", "performer", "rfa"),
    "fewer pairs": ("local", "longformer", "bigbird", "sparse_transformer", "reformer"),
}
# Names of lines that are not the first words of a label
NAMES = {"linformer": "Linformer,\nmean pooling", "nystromformer": "Nyström-\nformer", "linear": "linear,\nelu + 1"}
NAMES |= {"sparse_transformer": "Sparse T."}

# --- What is measured ----------------------------------------------------------------------------------------------

BLOCK = 16  # tokens per block of BigBird
NEAR = 32  # width of Long-Short's segments, tokens per chunk of LSH attention
BUCKETS = 16


class Way(NamedTuple):
    """One mechanism, at several sizes."""

    name: str
    label: str
    line: str  # matplotlib's format
    size: str  # what the size is
    field: str  # of `mechanisms.Sizes`
    sizes: tuple[int, ...]
    target: str = "softmax"

    def make(self, size: int, n: int, d: int, rng: Generator) -> Callable[[Array, Array, Array], Array]:
        """The mechanism at one size, for ``n`` tokens of width ``d``: ``q, k, v -> out``."""
        others: dict[str, Any] = {"window": NEAR, "block": BLOCK, "chunk": NEAR, "buckets": BUCKETS, self.field: size}
        sizes = mechanisms.Sizes(n, d, global_tokens=(0, n - 1), **others)
        own = mechanisms.learned(self.name, sizes, rng) | mechanisms.options(self.name, sizes, rng)
        page = mechanisms.page(self.name)
        return lambda q, k, v: page.forward(**mechanisms.inputs(self.name, q, k, v), **own)[0]


SIZES = (4, 8, 16, 32, 64, 128)
WAYS = {
    way.name: way
    for way in (
        Way("linformer", "Linformer, mean pooling", "s-", "R", "reduced", SIZES[1:]),
        Way("nystromformer", "Nyströmformer", "o-", "landmarks", "landmarks", SIZES[1:]),
        Way("performer", "Performer", "o-", "features m", "features", (*SIZES[2:], 256)),
        Way("rfa", "RFA", "s-", "features m", "features", SIZES[2:]),
        Way("linear", "linear, elu + 1", "*", "features C", "features", (0,)),
        Way("local", "window", "v-", "window w", "window", SIZES),
        Way("longformer", "Longformer, first and last global", "^-", "window w", "window", SIZES),
        Way("bigbird", "BigBird, blocks of 16", "D-", "random blocks r", "random_blocks", (0, 2, 4, 8, 16)),
        Way("long_short", f"Long-Short, window {NEAR}, W_p drawn", "P-", "mixtures R", "landmarks", (4, 16, 64)),
        Way("sparse_transformer", "Sparse Transformer, strided", "D:", "stride l", "stride", SIZES[2:], "causal"),
        Way("reformer", f"LSH, chunks of {NEAR}", "o:", "rounds", "rounds", (1, 2, 4, 8), "shared"),
    )
}


TARGETS: dict[str, Callable[[Array, Array], Array]] = {  # q, k -> P (..., N, N)
    "softmax": softmax.matrix,
    "causal": lambda q, k: softmax.matrix(q, k, causal=True),
    # Of queries to themselves as keys of length 1, nobody to itself
    "shared": lambda q, k: patterns.matrix(q, unit(q)[0], ~np.eye(q.shape[-2], dtype=np.bool_)),
}


# --- Measuring ------------------------------------------------------------------------------------------------------


class Curve(NamedTuple):
    """One mechanism; an entry per size."""

    sizes: tuple[int, ...]
    cost: Array  # (K,), multiply-adds over those of softmax attention
    output: measured.Spread  # relative errors, (K, ...)
    matrix: measured.Spread


QUICK = {"heads": Random(sentences=1, layers=2, heads=1, length=160, width=8), "quick": True}


def compute(
    *,
    seed: int = 0,
    heads: Heads | Source | Random = Source(sentences=8),  # noqa: B008  # a tuple
    quick: bool = False,
) -> Results:
    """Measure every mechanism at every size.

    Parameters
    ----------
    seed : int
        Of the choice of sentences and of what the mechanisms draw.
    heads : Heads, Source or Random
        What to approximate; by default heads of a pretrained network on a text.
    quick : bool
        Of each mechanism two sizes: for tests.
    """
    rng = np.random.default_rng(seed)
    with threadpool_limits(1):
        found, sources = measured.heads_from(heads, seed, rng)
        sentences, layers, n_heads, n, d = found.q.shape
        ways = {name: measure(way, found, rng, quick) for name, way in WAYS.items()}
        svd = measure_svd(tuple(r for r in (8, 16, 32, 64, 128) if r < n), found)
    return Results(
        shape=(n, d, sentences * layers * n_heads),  # N, D, heads in all
        ways=ways,
        svd=svd,
        settings={**sources, "seed": seed, "sentences": sentences},
    )


def measure(way: Way, heads: Heads, rng: Generator, quick: bool) -> Curve:
    """Cost and errors of one mechanism."""
    n, d = heads.q.shape[-2:]
    sizes = way.sizes[:2] if quick else way.sizes
    identity = np.broadcast_to(np.eye(n, dtype=heads.q.dtype), (heads.q.shape[2], n, n))
    forwards = [way.make(size, n, d, rng) for size in sizes]
    done = [count(forward, *(x[0, 0, 0] for x in (heads.q, heads.k, heads.v))).multiply_adds for forward in forwards]
    output, matrix = np.empty((2, len(sizes), *heads.q.shape[:3]))  # (K, S, T, H) each
    for s, t in np.ndindex(heads.q.shape[:2]):
        q, k, v = heads.q[s, t], heads.k[s, t], heads.v[s, t]  # (H, N, D)
        p = TARGETS[way.target](q, k)  # (H, N, N)
        for i, forward in enumerate(forwards):
            output[i, s, t] = relative_error(forward(q, k, v), p @ v)
            matrix[i, s, t] = relative_error(forward(q, k, identity), p)
    return Curve(sizes, np.array(done) / (n * n * 2 * d), spread(output), spread(matrix))


def measure_svd(ranks: tuple[int, ...], heads: Heads) -> Curve:
    """The truncated SVD of ``P``; its cost is that of the two thin products, ``r / N`` of softmax attention's."""
    sentences, _, _, n, _ = heads.q.shape
    output, matrix = (np.stack(errors) for errors in zip(*truncated_svd(ranks, heads, range(sentences)), strict=True))
    return Curve(ranks, np.array(ranks) / n, spread(output), spread(matrix))


# --- Drawing --------------------------------------------------------------------------------------------------------


def draw(results: Results) -> Figure:
    """Mechanisms in place of softmax attention in one pretrained network whose weights stay as they are; nothing is
    fitted. All 72 heads, eight texts of 512 tokens: lines are medians, bars the middle 80% of heads and texts at the
    largest size. Across: multiply-adds, over those of softmax attention (dotted at 1); a line runs through the sizes
    of one mechanism, and those of the other families are behind it in grey. Error of the output (above) and of the
    matrix that it applies (below). Dashed: the truncated SVD of two ranks; no matrix of that rank is nearer. It needs
    the matrix, so it has no place along the cost. Hollow marks: measured against another attention (Sparse
    Transformer: causal; LSH: queries are keys). Longformer: first and last token global. BigBird: blocks of 16.
    Long-Short: window 32, its projection drawn at random. LSH: chunks of 32.
    """
    figure, axes = style.figure(2, len(FAMILIES), height=0.72, sharex=True, sharey="row")
    for row, field, name in zip(axes, ("output", "matrix"), ("output", "matrix P"), strict=True):
        for axis, (title, family) in zip(row, FAMILIES.items(), strict=True):
            axis.set(xscale="log", yscale="log", title=title if field == "output" else "")
            _draw_family(axis, results, field, family)
        row[0].set_ylabel(f"error of the {name}")
        for axis in row:  # whose limits are known now
            labels.at_ends(axis, rows=2)
    figure.supxlabel("cost: multiply-adds, relative to softmax attention", fontsize="medium")
    return figure


def _draw_family(axis: Axes, results: Results, field: str, family: Sequence[str]) -> None:
    dodge = {name: 1.1 ** (i + 1) for i, name in enumerate(family)}  # bars stand apart
    for name, curve in results.ways.items():
        way, colour, errors = WAYS[name], style.MECHANISMS[name], getattr(curve, field)
        if name in family:
            face = colour if way.target == "softmax" else "white"
            look = {"mfc": face, "ms": 4, "zorder": 3, "label": NAMES.get(name, way.label.partition(",")[0])}
            with_range(axis, curve.cost, errors, way.line, colour=colour, at=curve.cost[-1] * dodge[name], **look)
        else:
            axis.plot(curve.cost, errors.median, "-", color=BEHIND, lw=0.8)
    for rank, error in list(zip(results.svd.sizes, getattr(results.svd, field).median, strict=True))[:3:2]:
        axis.axhline(error, ls="--", color=style.BLACK, label=f"SVD,\nrank {rank}")
    axis.axvline(1, color=style.GREY, lw=0.8, ls=":")
