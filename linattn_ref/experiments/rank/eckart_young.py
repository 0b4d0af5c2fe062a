"""Eckart-Young-Mirsky measured: the truncated SVD's error is the spectrum's tail, and nothing of that rank beats it."""

import numpy as np

from linattn_ref.attention import softmax
from linattn_ref.experiments.publishing.kit import Array, Figure, Results, labels, style
from linattn_ref.theory.eckart_young import rank_errors

__all__ = ["compute", "draw"]

RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 192)  # those below the matrix's are used
WIDTH, DEVIATION = 32, 2.0  # of queries and keys; the standard deviation of their scores
LOOKS = {  # of the competitors: what is written beside the line, its colour
    "johnson_lindenstrauss": ("P RᵀR (Theorem 1)", style.PURPLE),
    "projection": ("random projection", style.ORANGE),
    "sketch": ("random range (sketch)", style.SKY),
    "power": ("sketch, 3 iterations", style.GREEN),
}


QUICK = {"length": 64, "draws": 1}


def compute(*, seed: int = 0, matrix: Array | None = None, length: int = 256, draws: int = 4) -> Results:
    """The errors of the truncated SVD and its competitors at every rank.

    Parameters
    ----------
    seed : int
    matrix : ndarray ``(N, L)``, optional
        What to approximate, such as a head of a pretrained network; unless given, softmax attention of normal queries
        and keys, ``length`` long, in float64.
    length : int
    draws : int
        Competitors of each kind, of which the nearest counts.

    Raises
    ------
    ValueError
        ``matrix`` is 0 everywhere: errors are drawn as shares of its norm.
    """
    rng = np.random.default_rng(seed)
    if matrix is None:
        q, k = rng.standard_normal((2, length, WIDTH))
        matrix = softmax.matrix(q, k, scale=DEVIATION / np.sqrt(WIDTH))
    if not matrix.any():
        raise ValueError("matrix: expected one that is not 0 everywhere")
    ranks = [k for k in RANKS if k < min(matrix.shape)]
    return Results(
        length=len(matrix),
        frobenius=float(np.linalg.norm(matrix)),  # |P|_F
        spectral=float(np.linalg.norm(matrix, 2)),  # |P|_2
        errors=rank_errors(matrix, ranks, rng=rng, draws=draws),
    )


def draw(results: Results) -> Figure:
    """Approximating an attention matrix by one of rank k. The truncated SVD (points) has exactly the error that the
    singular values left out make (line), and the best of several random matrices of the same rank never has less.
    """
    figure, axes = style.figure(1, 2, height=0.42)
    ranks = [each.rank for each in results.errors]
    for axis, norm, size in ((axes[0], "frobenius", results.frobenius), (axes[1], "spectral", results.spectral)):
        for kind, (name, colour) in LOOKS.items():
            reached = [getattr(each, f"competitors_{norm}")[kind] / size for each in results.errors]
            axis.plot(ranks, reached, "v:", color=colour, label=name)
        stated = [getattr(each, f"stated_{norm}") / size for each in results.errors]
        measured = [getattr(each, f"measured_{norm}") / size for each in results.errors]
        axis.plot(ranks, stated, "-", color=style.BLACK, label="tail of the spectrum")
        axis.plot(ranks, measured, "o", color=style.VERMILLION, label="truncated SVD")
        axis.set(title=f"{norm.capitalize()} norm", xlabel="rank k", xscale="log", yscale="log")
        labels.ticks(axis, [k for k in ranks if k.bit_count() == 1])
    axes[0].set_ylabel("error / norm of P")
    labels.at_ends(axes[1])
    return figure
