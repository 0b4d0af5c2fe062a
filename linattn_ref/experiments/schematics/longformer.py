"""Longformer: a window, and a few global tokens."""

import numpy as np
from matplotlib.figure import Figure

from linattn_ref.attention import patterns
from linattn_ref.experiments.publishing.pairs import paint
from linattn_ref.experiments.schematics.patterns import TOKENS, Results, draw_pattern, sizes

__all__ = ["compute", "draw"]


def compute() -> Results:
    """A window of two on each side, the first token global."""
    both = patterns.longformer(TOKENS, window=2, global_tokens=[0])
    near, own = patterns.local(TOKENS, window=2), np.eye(TOKENS, dtype=bool)
    whole = paint([("global", both), ("window or block", near), ("the query itself", own)])
    return Results(sizes(), {"": whole})


def draw(results: Results) -> Figure:
    """Longformer: a sliding window, and global tokens that see all and are seen by all, here the first. One softmax
    over both. A global query has projections of its own, from other weights.

    The pattern.
    """
    return draw_pattern(results, "Longformer: a window, and tokens that see all and are seen by all")
