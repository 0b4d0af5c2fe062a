"""BigBird: in blocks, a window, global blocks and random blocks."""

import numpy as np
from matplotlib.figure import Figure
from numpy.random import Generator

from linattn_ref.attention import patterns
from linattn_ref.attention.bigbird import draw_random_blocks
from linattn_ref.experiments.publishing.pairs import paint
from linattn_ref.experiments.schematics.patterns import Results, draw_pattern, sizes

__all__ = ["compute", "draw"]

BLOCK, BLOCKS = 2, 12


def compute(*, rng: Generator) -> Results:
    """A window of three blocks, the first global, one drawn for each."""
    drawn = draw_random_blocks(BLOCKS, 1, rng, 3, (0,))
    n = BLOCK * BLOCKS
    everything = patterns.bigbird(n, block=BLOCK, global_blocks=(0,), random_blocks=drawn)
    star = patterns.bigbird(n, block=BLOCK, window_blocks=1, global_blocks=(0,))
    near = patterns.bigbird(n, block=BLOCK, global_blocks=())
    own = np.eye(n, dtype=bool)
    layers = [("random", everything), ("global", star), ("window or block", near), ("the query itself", own)]
    return Results(sizes(n), {"": paint(layers)})


def draw(results: Results) -> Figure:
    """BigBird: tokens in blocks, here of two. A block of queries sees the blocks beside its own, a global block,
    which sees all as well, and one block drawn at random beforehand. One softmax over all of them.

    The pattern.
    """
    return draw_pattern(results, "BigBird: blocks in a window, global ones, and random ones")
