"""Softmax attention: every query beside every key."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from linattn_ref.experiments.schematics.arrays import K, O, Q, V
from linattn_ref.experiments.schematics.drawing import EQUALS, PRODUCT, Box, Sheet, becomes, toy_sizes

__all__ = ["compute", "draw"]

compute = toy_sizes


def draw(results: Mapping[str, int]) -> Figure:
    """Softmax attention. Arrays are boxes, with the letters of their sides, drawn to the scale of a toy: N queries
    and L keys, nine each, of width D = M = 3. Every query meets every key: both the scores and the weights P are N
    x L, and this square is what all other mechanisms do without.

    ``P = softmax(Q K^T)``, ``O = P V``.
    """
    sheet, p = Sheet(results), Box("$P$", "N", "L", "weights")
    sheet.row(0, 0, Q, PRODUCT, K.T, becomes("softmax\nof each row", 5.5), p, PRODUCT, V, EQUALS, O)
    return sheet.figure("Softmax attention: every query meets every key")
