"""Local attention: the keys nearby."""

import numpy as np
from matplotlib.figure import Figure

from linattn_ref.attention import patterns
from linattn_ref.experiments.publishing.pairs import paint
from linattn_ref.experiments.schematics.patterns import TOKENS, Results, draw_pattern, sizes

__all__ = ["compute", "draw"]


def compute() -> Results:
    """A window, and a dilated one."""
    own = np.eye(TOKENS, dtype=bool)
    near = {"window": patterns.local(TOKENS, window=2), "dilated": patterns.local(TOKENS, window=2, dilation=2)}
    layers = {name: [("window or block", pairs), ("the query itself", own)] for name, pairs in near.items()}
    return Results(sizes(), {name: paint(each) for name, each in layers.items()})


def draw(results: Results) -> Figure:
    """Local attention: softmax attention over the keys of a sliding window, here two on each side, one after the
    other or every other one. Only the coloured pairs are computed; nothing is made where the square is white.

    The window, and the dilated one beside it.
    """
    return draw_pattern(results, "Local attention: the keys nearby")
