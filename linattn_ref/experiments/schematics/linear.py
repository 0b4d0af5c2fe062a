"""Linear attention: the sums over the keys come first."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from linattn_ref.experiments.schematics.arrays import OF_SUMS, PHI_K, PHI_Q, O, sums
from linattn_ref.experiments.schematics.drawing import EQUALS, PRODUCT, Ghost, Sheet, becomes, toy_sizes

__all__ = ["compute", "draw"]

compute = toy_sizes


def draw(results: Mapping[str, int]) -> Figure:
    """Linear attention. Keys and values are multiplied first: the sums over all keys are S, one C x M array, and z,
    C numbers, which every query shares. The N x L matrix of similarities, phi(Q) phi(K)^T, is never made; a row of
    the output is a row of the last product over the number beside it.

    ``S = phi(K)^T V``, ``z = phi(K)^T 1``, ``O = phi(Q) S / phi(Q) z``.
    """
    sheet = Sheet(results)
    x = sheet.row(0, 0, PHI_K.T, PRODUCT, OF_SUMS, EQUALS, sums())
    x = sheet.row(x + 3, 0, PHI_Q, PRODUCT, sums(), becomes("divide"), O)
    sheet.row(x + 3, 0, Ghost(label="$\\phi(Q)\\,\\phi(K)^\\top$\nnever made"))
    return sheet.figure("Linear attention: the sums over the keys come first")
