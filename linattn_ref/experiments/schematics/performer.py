"""Performer: random features, then linear attention."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from linattn_ref.experiments.schematics.arrays import OF_SUMS, PHI_K, PHI_Q, K, O, Q, sums
from linattn_ref.experiments.schematics.drawing import EQUALS, PRODUCT, Box, Ghost, Sheet, becomes, toy_sizes

__all__ = ["compute", "draw"]

compute = toy_sizes


def draw(results: Mapping[str, int]) -> Figure:
    """Performer. Queries and keys are multiplied with the same m random directions, drawn beforehand; an
    exponential makes of them as many positive features, C = m. Their products would estimate the exponentials of
    the scores, an N x L matrix that is never made: the rest is linear attention.

    ``phi(X) = exp(X Omega^T - |x|^2 / 2)``; ``S = phi(K)^T V``, ``O = phi(Q) S / phi(Q) z``.
    """
    sheet, omega = Sheet(results), Box("$\\Omega$", "m", "D", "fixed")
    x = sheet.row(3, 13.5, Q, PRODUCT, omega.T, becomes("exp"), PHI_Q)
    sheet.row(x + 7, 13.5, K, PRODUCT, omega.T, becomes("exp"), PHI_K)
    x = sheet.row(0, 0, PHI_K.T, PRODUCT, OF_SUMS, EQUALS, sums())
    x = sheet.row(x + 3, 0, PHI_Q, PRODUCT, sums(), becomes("divide"), O)
    sheet.row(x + 3, 0, Ghost(label="estimate\nof P: never\nmade"))
    return sheet.figure("Performer: random features of queries and keys, then linear attention")
