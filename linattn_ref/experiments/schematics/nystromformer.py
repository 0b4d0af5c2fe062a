"""Nyströmformer: landmarks between the queries and the keys."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from linattn_ref.experiments.schematics.arrays import K, O, Q, V
from linattn_ref.experiments.schematics.drawing import ABOUT, EQUALS, PRODUCT, Box, Ghost, Sheet, becomes, toy_sizes

__all__ = ["compute", "draw"]

compute = toy_sizes


def draw(results: Mapping[str, int]) -> Figure:
    """Nyströmformer. The means of R segments are landmark queries and landmark keys. Three small softmax matrices,
    of queries and landmark keys, of the landmarks, and of landmark queries and keys, stand for the N x L matrix;
    they are multiplied from the right.

    ``P ~ F A^+ B``, with ``F``, ``A``, ``B`` softmax matrices of the landmarks.
    """
    sheet, means = Sheet(results), becomes("means of\nR segments", 5.0)
    x = sheet.row(1, 13.5, Q, means, Box("$\\tilde Q$", "R", "D", "queries"))
    x = sheet.row(x + 4, 13.5, K, means, Box("$\\tilde K$", "R", "D", "keys"))
    made = (("F", "Q\\,\\tilde K^\\top"), ("A", "\\tilde Q\\,\\tilde K^\\top"), ("B", "\\tilde Q\\,K^\\top"))
    lines = "\n".join(f"${name}$ = softmax of ${product}$" for name, product in made)
    sheet.text(x + 4, 13.5, lines, ha="left", size=1.2, linespacing=1.7)
    f, a, b = Box("$F$", "N", "R", "weights"), Box("$A^{+}$", "R", "R", "weights"), Box("$B$", "R", "L", "weights")
    sheet.row(1, 0, Ghost(label="$P$: never\nmade"), ABOUT, f, PRODUCT, a, PRODUCT, b, PRODUCT, V, EQUALS, O)
    return sheet.figure("Nyströmformer: R landmarks between the queries and the keys")
