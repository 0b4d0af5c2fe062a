"""Block-local attention: blocks that know nothing of each other."""

import numpy as np
from matplotlib.figure import Figure

from linattn_ref.attention import patterns
from linattn_ref.experiments.publishing.pairs import paint
from linattn_ref.experiments.schematics.patterns import TOKENS, Results, draw_pattern, sizes

__all__ = ["compute", "draw"]


def compute() -> Results:
    """Blocks, and causal ones."""
    own = np.eye(TOKENS, dtype=bool)
    kinds = {"blocks": False, "causal": True}
    blocks = {name: patterns.block_local(TOKENS, block=6, causal=causal) for name, causal in kinds.items()}
    layers = {name: [("window or block", pairs), ("the query itself", own)] for name, pairs in blocks.items()}
    return Results(sizes(), {name: paint(each) for name, each in layers.items()})


def draw(results: Results) -> Figure:
    """Block-local attention: softmax attention within blocks, here of six tokens, all keys of the block or only
    those before the query. However many layers there are, nothing passes from one block to another.

    The blocks, and the causal ones beside them.
    """
    return draw_pattern(results, "Block-local attention: blocks that know nothing of each other")
