"""Linformer: a few mixed keys in place of all."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from linattn_ref.experiments.schematics.arrays import E, F, K, O, Q, V
from linattn_ref.experiments.schematics.drawing import EQUALS, PRODUCT, Box, Ghost, Sheet, becomes, toy_sizes

__all__ = ["compute", "draw"]

compute = toy_sizes


def draw(results: Mapping[str, int]) -> Figure:
    """Linformer. E mixes the L keys into R, and F the values: both learned, a column a position. The rest is
    softmax attention over R keys: of the N x L square only R columns are left.

    ``K~ = E K``, ``V~ = F V``; ``P~ = softmax(Q K~^T)``, ``O = P~ V~``.
    """
    sheet = Sheet(results)
    mixed_k, mixed_v = Box("$\\tilde K$", "R", "D", "keys"), Box("$\\tilde V$", "R", "M", "values")
    x = sheet.row(3, 13.5, E, PRODUCT, K, EQUALS, mixed_k)
    sheet.row(x + 6, 13.5, F, PRODUCT, V, EQUALS, mixed_v)
    p = Ghost(inside=Box("$\\tilde P$", "N", "R", "weights"))
    sheet.row(8, 0, Q, PRODUCT, mixed_k.T, becomes("softmax\nof each row", 5.5), p, PRODUCT, mixed_v, EQUALS, O)
    return sheet.figure("Linformer: R mixed keys in place of L")
