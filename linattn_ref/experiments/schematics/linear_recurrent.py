"""Causal linear attention, unrolled: two sums are handed on from token to token."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from linattn_ref.experiments.schematics.arrays import column, row, sums
from linattn_ref.experiments.schematics.drawing import PRODUCT, Sheet, toy_sizes

__all__ = ["compute", "draw"]

STEPS = ("i-1", "i", "i+1")
compute = toy_sizes


def draw(results: Mapping[str, int]) -> Figure:
    """Causal linear attention is a recurrent network: its two hidden states, S and z, are handed from token to
    token. Token i adds phi(k_i) v_i^T to S and phi(k_i) to z, and its query reads from both. The states have the
    same size at every step, however long the sequence; softmax attention would keep all earlier keys and values
    instead.

    Three steps: what each adds, from below, and what is read, above.
    """
    sheet = Sheet(results)
    for step, i in enumerate(STEPS):
        left = 9.5 + 17 * step
        right = sheet.row(left, 0, sums(i))
        if step < len(STEPS) - 1:
            sheet.arrow((right + 0.3, 0), (right + 8.7, 0))
        # What comes in, from below
        sheet.row(left - 8, -7.5, column("weights"), PRODUCT, [row("values"), row("values", "1")])
        sheet.text(left - 7.5, -10.4, f"$\\phi(k_{{{i}}})$", size=1.2)
        sheet.text(left - 2, -8.9, f"$v_{{{i}}}$, 1", size=1.2)
        sheet.arrow((left - 3.5, -5.4), (left - 3.5, -1.2))
        sheet.text(left - 3.5, 0, "+", size=1.6, bbox={"boxstyle": "circle,pad=0.15", "fc": "white", "ec": "black"})
        sheet.arrow((left - 2.3, 0), (left - 1.1, 0))
        # What is read, above
        sheet.arrow((left + 2, 3.4), (left + 2, 6.2))
        sheet.text(left + 2.5, 4.6, f"$\\phi(q_{{{i}}})$", ha="left", size=1.2)
        sheet.box(left + 0.5, 6.9, row("output"), columns=False)
        sheet.text(left + 4, 6.9, f"$o_{{{i}}}$", ha="left", size=1.2)
    return sheet.figure("Causal linear attention: a recurrent network with two hidden states")
