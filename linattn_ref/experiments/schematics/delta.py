"""The delta rule: ask the state first, then write what is missing."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from linattn_ref.experiments.schematics.arrays import column, row
from linattn_ref.experiments.schematics.drawing import EQUALS, LETTER, PLUS, PRODUCT, Box, Sheet, toy_sizes

__all__ = ["compute", "draw"]

FADED = Box("$\\tilde S_i$", "C", "M", "state")
compute = toy_sizes


def draw(results: Mapping[str, int]) -> Figure:
    """The delta rule. Above: the state, which may have faded, is asked what it says at the new key; what is missing
    from the value, times beta, is u. Below: u is written at the key, so that for a unit key and beta = 1 the state
    says the value there and nothing else than before at right angles to it; then the query reads.

    ``u_i = beta_i (v_i - S~_i^T k_i)``, ``S_i = S~_i + k_i u_i^T``, ``o_i = S_i^T q_i``.
    """
    sheet = Sheet(results)
    x = sheet.row(3, 9, row("keys", "C"), PRODUCT, FADED, EQUALS, row("values"))
    sheet.text(4, 7.4, "$k_i^\\top$", size=1.2)
    sheet.text(x - 1.5, 7.4, "what is there", size=1.0)
    sheet.text(x + 5.2, 9, "$\\beta_i\\;($", size=LETTER)
    x = sheet.row(x + 7, 9, row("values"))
    sheet.text(x - 1.5, 7.4, "$v_i$", size=1.2)
    sheet.text(x + 1.3, 9, "$-$", size=1.3 * LETTER)
    x = sheet.row(x + 2.6, 9, row("values"))
    sheet.text(x - 1.5, 7.4, "what is there", size=1.0)
    sheet.text(x + 0.8, 9, ")", size=LETTER)
    x = sheet.row(x + 0.7, 9, EQUALS, row("weights"))
    sheet.text(x + 0.8, 9, "$u_i$", ha="left", size=1.2)

    x = sheet.row(9, 0, FADED, PLUS, column("keys"), PRODUCT, row("weights"), EQUALS, Box("$S_i$", "C", "M", "state"))
    sheet.text(15.9, -3, "$k_i$", size=1.2)
    sheet.text(21, -1.6, "$u_i$", size=1.2)
    sheet.arrow((x + 1, 0), (x + 6, 0))
    sheet.text(x + 3.3, 1.2, "$q_i$", size=1.2)
    x = sheet.box(x + 7, 0, row("output"), columns=False)
    sheet.text(x + 0.8, 0, "$o_i$", ha="left", size=1.2)
    return sheet.figure("The delta rule: ask the state, then write what is missing")
