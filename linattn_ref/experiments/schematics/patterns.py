"""What the pictures of the sparse patterns share: scores for the pairs that there are, and one softmax a row."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from linattn_ref.experiments.publishing.pairs import PAIRS
from linattn_ref.experiments.schematics.arrays import K, O, Q, V
from linattn_ref.experiments.schematics.drawing import EQUALS, PRODUCT, Cells, Sheet, becomes

__all__ = ["TOKENS", "Results", "draw_pattern", "sizes"]

TOKENS = 18  # of a toy: twice as many as elsewhere, half as large


class Results(NamedTuple):
    sizes: dict[str, int]
    patterns: dict[str, NDArray[Any]]  # by what is written under it, (N, L), as `pairs.paint` makes them


def sizes(tokens: int = TOKENS) -> dict[str, int]:
    """The toy's."""
    return {"N": tokens, "L": tokens, "D": tokens // 3, "M": tokens // 3}


def draw_pattern(results: Results, title: str) -> Figure:
    """``Q K^T`` where there is a pair, its softmax, and ``P V``; of several patterns the last stands beside it."""
    sheet = Sheet(results.sizes, unit=9 / results.sizes["N"])
    first, *others = (Cells(kinds, label=name) for name, kinds in results.patterns.items())
    x = sheet.row(0, 0, Q, PRODUCT, K.T, becomes("softmax over\nthe pairs", 5.6), first, PRODUCT, V, EQUALS, O)
    for other in others:
        sheet.text(x + 1.4, 0, "or")
        x = sheet.row(x + 4, 0, other)
    drawn = np.unique([*results.patterns.values()])
    _legend(sheet, [reason for i, reason in enumerate(PAIRS) if i and i in drawn])
    return sheet.figure(title)


def _legend(sheet: Sheet, reasons: Sequence[str]) -> None:
    x = 3.0
    for reason in reasons:
        sheet.square(x, -7.4, PAIRS[reason])
        sheet.text(x + 1.2, -7.4, reason, ha="left")
        x += 3.5 + 0.62 * len(reason)
