"""Linformer and linear attention together: mixing before sums that would have been taken anyway."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from linattn_ref.experiments.schematics.arrays import PHI_K, PHI_Q, E, F, O, V, sums
from linattn_ref.experiments.schematics.drawing import EQUALS, PRODUCT, Box, Ghost, Sheet, becomes, toy_sizes

__all__ = ["compute", "draw"]

compute = toy_sizes


def draw(results: Mapping[str, int]) -> Figure:
    """Linformer and linear attention together. E and F mix keys and values, and the sums of linear attention are
    taken over the R mixtures instead of the L tokens. Linear attention had no N x L matrix left to avoid: the
    mixing above costs more than the sum that it shortens.

    ``K~ = E phi(K)``, ``V~ = F V``; ``S = K~^T V~``, ``O = phi(Q) S / phi(Q) z``.
    """
    sheet = Sheet(results)
    mixed_k, mixed_v = Box("$\\tilde K$", "R", "C", "weights"), Box("$\\tilde V$", "R", "M", "values")
    x = sheet.row(3, 13.5, E, PRODUCT, PHI_K, EQUALS, mixed_k)
    sheet.row(x + 5, 13.5, F, PRODUCT, V, EQUALS, mixed_v)
    x = sheet.row(0, 0, mixed_k.T, PRODUCT, [mixed_v, Box("1", "R", "1", "values")], EQUALS, sums())
    x = sheet.row(x + 3, 0, PHI_Q, PRODUCT, sums(), becomes("divide"), O)
    sheet.row(x + 2, 0, Ghost(label="no square\nwas left\nto avoid"))
    return sheet.figure("Both together: mixing before a sum that was short already")
