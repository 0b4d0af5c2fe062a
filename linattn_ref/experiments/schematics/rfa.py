"""Random feature attention: features of unit vectors, and a state that fades."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from linattn_ref.experiments.publishing.pairs import paint
from linattn_ref.experiments.schematics.arrays import Q, column, row, sums
from linattn_ref.experiments.schematics.drawing import (
    EQUALS,
    LETTER,
    PLUS,
    PRODUCT,
    Box,
    Cells,
    Sheet,
    becomes,
    toy_sizes,
)

__all__ = ["Results", "compute", "draw"]


class Results(NamedTuple):
    sizes: dict[str, int]
    fading: NDArray[np.float64]  # (N, L), the share of token j that is left at token i, over that of token i


def compute(*, gate: float = 0.7) -> Results:
    """Equation (6) of the mechanism: ``r_ij / (1 - g) = g^(i - j)``."""
    sizes = toy_sizes()
    sizes["m"] = sizes["C"] // 2  # two features a direction
    i, j = np.arange(sizes["N"])[:, None], np.arange(sizes["L"])
    return Results(sizes, np.where(j <= i, gate ** np.maximum(i - j, 0), 0.0))


def draw(results: Results) -> Figure:
    """Random feature attention. Features are the sines and cosines of queries and keys of length 1 along m random
    directions. A gate g lets the state fade before the next token comes in, which gets the rest: an older token has
    less weight, as the square at the right would show, which is never made (here with g = 0.7 for every token).

    ``S_t = g S_{t-1} + (1 - g) phi(k_t) v_t^T``.
    """
    sheet, q, omega = Sheet(results.sizes), Box("$\\hat Q$", "N", "D", "queries"), Box("$\\Omega$", "m", "D", "fixed")
    features = [Box("sin", "N", "m", "weights"), Box("cos", "N", "m", "weights")]
    x = sheet.row(3, 13.5, Q, becomes("rows of\nlength 1"), q, PRODUCT, omega.T, becomes("sin, cos"), features)
    sheet.text(x + 1.5, 13.5, "$= \\phi(Q)$;\nlikewise $\\phi(K)$", ha="left", size=1.2)
    sheet.text(1.2, 0, "$g_t$", size=LETTER)
    x = sheet.row(3.8, 0, sums("t-1"), PLUS)
    sheet.text(x + 1.8, 0, "$(1 - g_t)$", size=LETTER)
    sheet.text(x + 6.3, -3, "$\\phi(k_t)$", size=1.2)
    sheet.text(x + 11.5, -1.5, "$v_t$, 1", size=1.2)
    token = [row("values"), row("values", "1")]
    x = sheet.row(x + 5.8, 0, column("weights"), PRODUCT, token, EQUALS, sums("t"))
    left = paint([("window or block", results.fading > 0)])
    sheet.row(x + 6, 0, Cells(left, strength=results.fading, label="weights: never made"))
    return sheet.figure("Random feature attention: a state that fades")
