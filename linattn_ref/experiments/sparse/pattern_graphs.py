"""How many layers until every token depends on every other, how clustered a pattern is, and how many pairs it has."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.sparse import patterns
from linattn_ref.attention.sparse.bigbird import draw_random_blocks
from linattn_ref.experiments.measuring.scaling import growth
from linattn_ref.experiments.publishing.kit import PAIRS, Figure, Generator, Ints, Mask, Results, labels, style
from linattn_ref.theory import pattern_graphs

__all__ = ["PARTS", "RANDOM", "compute", "draw"]

WINDOW_BLOCKS = 5  # in one of 3 no two neighbours of a block are neighbours
RANDOM = 3  # r, of BigBird's base model
LENGTHS = (256, 1024, 4096, 16384, 65536, 262144)  # N of the pair counts, squares
WINDOW = 64  # keys, of the linear pattern among the pair counts


class Parts(NamedTuple):
    """What a pattern is put together from."""

    window: bool
    random: bool
    whole: bool  # a global block
    both_ways: bool  # a random edge is one in both directions

    def pattern(self, n: int, rng: Generator) -> Mask:
        """The graph of ``n`` blocks."""
        window_blocks, global_blocks = (WINDOW_BLOCKS if self.window else 1), ((0,) if self.whole else ())
        drawn = draw_random_blocks(n, RANDOM, rng, window_blocks, global_blocks) if self.random else None
        blocks: dict[str, Any] = {"window_blocks": window_blocks, "global_blocks": global_blocks}
        pattern = patterns.bigbird(n, block=1, random_blocks=drawn, **blocks)
        return pattern | pattern.T if self.both_ways else pattern


NAMES: tuple[str, ...] = ("window", "random", "random, both ways", "window + random")
NAMES += ("global", "window + global", "random + global", "window + random + global")
PARTS = {name: Parts(*(part in name for part in ("window", "random", "global", "both ways"))) for name in NAMES}


QUICK = {"blocks": (16, 32, 64), "draws": 2}


def compute(*, rng: Generator, blocks: Ints = (16, 32, 64, 128, 256, 512), draws: int = 5) -> Results:
    """Measure the graphs at every number of blocks, and count the pairs at `LENGTHS`.

    Parameters
    ----------
    rng : numpy.random.Generator
        Draws the random blocks.
    blocks : sequence of int
        Nodes of the graphs, at least 9, so that `RANDOM` of them are outside the window and not global.
    draws : int
        Of each pattern with random blocks.
    """
    graphs = {name: Results(diameter=[], clustering=[]) for name in PARTS}  # [length][draw], one where none is drawn
    for n in blocks:
        for name, parts in PARTS.items():
            drawn = [parts.pattern(n, rng) for _ in range(draws if parts.random else 1)]
            graphs[name].diameter.append([pattern_graphs.diameter(pattern) for pattern in drawn])
            graphs[name].clustering.append([pattern_graphs.clustering(pattern) for pattern in drawn])
    alone = [PARTS["random"].pattern(blocks[-1], rng) & ~np.eye(blocks[-1], dtype=bool) for _ in range(draws)]
    unseen = [float(1 - pattern.any(axis=0).mean()) for pattern in alone]
    return Results(
        blocks=tuple(blocks),
        graphs=graphs,  # by the names of PARTS
        unseen=unseen,  # the share of blocks that no other draws, random alone, per draw at the last length
        lengths=LENGTHS,
        pairs=count_pairs(LENGTHS),
    )


def count_pairs(lengths: Ints) -> dict[str, Results]:
    """Pairs of causal patterns at every length, and their exponents."""
    counts: dict[str, list[int]] = {"all pairs": [n * (n + 1) // 2 for n in lengths]}
    for kind in ("strided", "fixed"):
        counts[kind] = [pattern_graphs.pairs(n, kind=kind, stride=math.isqrt(n)) for n in lengths]
    counts[f"window of {WINDOW}"] = [pattern_graphs.pairs(n, kind="local_only", stride=WINDOW) for n in lengths]
    return {name: Results(counts=each, growth=growth(lengths, each)) for name, each in counts.items()}


# --- The figure -----------------------------------------------------------------------------------------------------

# A pattern's colour, wherever it is: of one part that of its pairs, of several one of its own
OF_PARTS = [PAIRS["window or block"], PAIRS["random"], PAIRS["random"], style.BLUE, PAIRS["global"]]
OF_PARTS += [style.VERMILLION, style.PURPLE, style.BLACK]
COLOURS = dict(zip(PARTS, OF_PARTS, strict=True))
PAIR_NAMES = {f"window of {WINDOW}": f"window,\n{WINDOW} keys"}
# What is drawn, and what is written beside it if it is not the pattern's name
OF_DIAMETER = ("window", "random, both ways", "window + random", "global")
OF_CLUSTERING = ("window", "random", "window + random", "window + global", "window + random + global")
TITLES = {"global": "any with a\nglobal block", "window + random + global": "all three"}


def draw(results: Results) -> Figure:
    """BigBird's patterns as graphs, a node per block (window of 5 blocks, 3 random blocks, 1 global block; the median
    of several draws and their range). Left: the number of layers until every block depends on every other; random
    blocks alone leave some that nobody sees, from 64 blocks on in every draw, so it is infinite, unless edges are used
    both ways. Middle: how often two neighbours of a block are neighbours; with global blocks alone never. Right: with
    a stride of sqrt(N), the pairs of Sparse Transformer's two patterns, strided and fixed, grow as N^1.5, faster than
    N log N (dotted).
    """
    figure, (left, middle, right) = style.figure(1, 3, height=0.44)
    left.set(title="layers until all see all", yscale="log", ylim=(1.7, 360))
    labels.ticks(left, [2, 4, 8, 16, 64, 256], along="y")
    middle.set(title="share of neighbours that are\nneighbours of each other", ylim=(-0.03, 1.03))
    right.set(title="pairs of query and key", xlabel="length N", xscale="log", yscale="log")
    draw_graphs(left, results, "diameter", OF_DIAMETER)
    draw_graphs(middle, results, "clustering", OF_CLUSTERING)

    x, strided = np.array(results.lengths), style.MECHANISMS["sparse_transformer"]
    shades = style.GREY, strided, strided, COLOURS["window"]
    for (name, counted), colour, look in zip(results.pairs.items(), shades, ("o-", "o-", "s--", "o-"), strict=True):
        label = f"{PAIR_NAMES.get(name, name)} $N^{{{counted.growth.exponent:.2f}}}$"
        right.plot(x, counted.counts, look, color=colour, label=label)
    right.plot(x, x * np.log2(x), ":", color=style.BLACK, label="$N \\log_2 N$")
    right.minorticks_off()
    labels.at_ends(right)

    return figure


def draw_graphs(axes: Any, results: Results, quantity: str, names: Sequence[str]) -> None:
    """A line per pattern, with the range of its draws; what is infinite is left out."""
    x = np.array(results.blocks)
    for name in names:
        label = TITLES.get(name, name.replace(" + ", "\nand ").replace(", ", ",\n"))
        values = np.array(getattr(results.graphs[name], quantity))  # (lengths, draws)
        finite, colour = np.isfinite(values).all(axis=1), COLOURS[name]
        dashed = "--" if PARTS[name].both_ways else "-"
        low, middle, high = (of(values[finite], axis=1) for of in (np.min, np.median, np.max))
        axes.plot(x[finite], middle, f"o{dashed}", color=colour, label=label)
        axes.fill_between(x[finite], low, high, color=colour, alpha=0.2, lw=0)
    axes.set(xlabel="blocks", xscale="log")
    labels.ticks(axes, results.blocks[::2])
    labels.at_ends(axes)
