"""Gated linear attention: a state that fades, a channel at a time."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from linattn_ref.experiments.publishing.pairs import paint
from linattn_ref.experiments.schematics.arrays import column, row
from linattn_ref.experiments.schematics.drawing import EQUALS, LETTER, PLUS, PRODUCT, Box, Cells, Sheet, toy_sizes

__all__ = ["Results", "compute", "draw"]


class Results(NamedTuple):
    sizes: dict[str, int]
    fading: NDArray[np.float64]  # (N, L), g_{j+1} ... g_i


def compute(*, gate: float = 0.75, reset: int = 5) -> Results:
    """Equation (3) of the mechanism for one gate for all tokens but one."""
    sizes = toy_sizes()
    gates = np.full(sizes["N"], gate)
    gates[reset] = 0
    below = np.tri(sizes["N"], k=-1, dtype=bool)
    return Results(sizes, np.tril(np.cumprod(np.where(below, gates[:, None], 1.0), axis=0)))


def draw(results: Results) -> Figure:
    """Gated linear attention. Each row of the state, a channel of the keys, fades by a gate of its own before the
    next token is added, and the query reads what is there: no features, no denominator. Where all channels share a
    gate an older token has less weight by the product of the gates since, as the square at the right would show,
    which is never made (here a gate of 0.75 for every token but one, whose gate is 0: what was before is
    forgotten).

    ``S_i = diag(g_i) S_{i-1} + k_i v_i^T``, ``o_i = S_i^T q_i``.
    """
    sheet = Sheet(results.sizes)
    x = sheet.row(2.5, 0, column("weights"))
    sheet.text(2.9, -3, "$g_i$", size=1.2)
    sheet.text(x + 0.8, 0, "$\\ast$", size=LETTER)
    x = sheet.row(x + 2.6, 0, state("i-1"), PLUS, column("keys"), PRODUCT, row("values"), EQUALS, state("i"))
    sheet.text(13.1, -3, "$k_i$", size=1.2)
    sheet.text(17.8, -1.6, "$v_i$", size=1.2)
    sheet.arrow((x - 1.5, 3.4), (x - 1.5, 6.2))
    sheet.text(x - 1, 4.6, "$q_i$", ha="left", size=1.2)
    sheet.box(x - 3, 6.9, row("output"), columns=False)
    sheet.text(x + 0.5, 6.9, "$o_i$", ha="left", size=1.2)
    kinds = paint([("window or block", results.fading > 0)])
    sheet.row(x + 6, 1.5, Cells(kinds, strength=results.fading, label="weights: never made"))
    return sheet.figure("Gated linear attention: a state that fades")


def state(index: str) -> Box:
    """``S`` alone: there is no denominator."""
    return Box(f"$S_{{{index}}}$", "C", "M", "state")
