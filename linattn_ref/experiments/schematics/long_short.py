"""Long-Short Transformer: near keys as they are, the rest as mixtures."""

from typing import NamedTuple

from matplotlib.figure import Figure

from linattn_ref.attention import long_short
from linattn_ref.attention.arguments import Mask
from linattn_ref.experiments.publishing.pairs import paint
from linattn_ref.experiments.schematics.arrays import K, O, Q, V
from linattn_ref.experiments.schematics.drawing import (
    EQUALS,
    PRODUCT,
    Box,
    Cells,
    Part,
    Sheet,
    Stack,
    becomes,
    toy_sizes,
)

__all__ = ["Results", "compute", "draw"]


class Results(NamedTuple):
    sizes: dict[str, int]
    near: Mask  # (N, L), the pairs of the short term


def compute() -> Results:
    """The pairs of the short term, as the mechanism has them."""
    sizes = toy_sizes()
    return Results(sizes, long_short.pattern(sizes["N"], window=2))


def draw(results: Results) -> Figure:
    """Long-Short Transformer. The keys choose how they are mixed into R: a softmax of each column of K W_p over all
    tokens. A query sees those R mixtures and the keys in and beside its own segment, with one softmax over both.

    ``K- = P^T K``; ``O = softmax(Q [K- ; near K]^T) [V- ; near V]``.
    """
    sheet, p, w_p = Sheet(results.sizes), Box("$P$", "L", "R", "weights"), Box("$W_p$", "D", "R", "fixed")
    mixed_k, mixed_v = Box("$\\bar K$", "R", "D", "keys"), Box("$\\bar V$", "R", "M", "values")
    x = sheet.row(2, 14.6, K, PRODUCT, w_p, becomes("softmax of\neach column", 5.5), p)
    x = sheet.row(x + 5, 14.6, p.T, PRODUCT, K, EQUALS, mixed_k)
    sheet.text(x + 1.5, 14.6, "likewise $\\bar V$", ha="left", size=1.2)
    seen: list[Part] = [Box("", "N", "R", "weights"), Cells(paint([("window or block", results.near)]))]
    keys, values = [mixed_k.T, K.T], Stack((mixed_v, V))
    sheet.row(2, 0, Q, PRODUCT, keys, becomes("one\nsoftmax"), seen, PRODUCT, values, EQUALS, O)
    return sheet.figure("Long-Short Transformer: near keys, and R mixtures of all")
