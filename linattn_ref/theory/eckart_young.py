"""The Eckart-Young-Mirsky theorem: the best approximation of rank ``k`` is the truncated SVD.

With ``P = sum_i sigma_i u_i v_i^T``, ``sigma_1 >= sigma_2 >= ...``, and ``P_k`` its first ``k`` terms,

    min over B of rank <= k of |P - B|_F = |P - P_k|_F = sqrt(sum_{i>k} sigma_i^2)           (1)
    min over B of rank <= k of |P - B|_2 = |P - P_k|_2 = sigma_{k+1}                         (2)

so the spectrum alone tells how well any matrix of rank ``k`` can do. It needs the SVD of ``P``, and so ``P`` itself:
``O(n^3)`` time. That is why Linformer does not use it, and what its projections are to be measured against.

References
----------
Eckart and Young (1936), "The approximation of one matrix by another of lower rank"; Mirsky (1960), "Symmetric gauge
functions and unitarily invariant norms" (every unitarily invariant norm).
Wang et al. (2020), "Linformer: self-attention with linear complexity", equation (6).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
import scipy.linalg
from numpy.random import Generator

from linattn_ref.op import Array, plain_numbers
from linattn_ref.op.options import check_choice, check_sizes, plain
from linattn_ref.op.shapes import check_array
from linattn_ref.theory.johnson_lindenstrauss import check_vector, gaussian_projection
from linattn_ref.theory.spectrum import check_values

__all__ = ["COMPETITORS", "Competitor", "RankError", "competitor", "rank_errors", "tail_frobenius", "tail_spectral"]
__all__ += ["truncated_svd"]

Competitor = Literal["johnson_lindenstrauss", "projection", "sketch", "power"]
COMPETITORS: tuple[Competitor, ...] = get_args(Competitor)


@plain_numbers
def truncated_svd(matrix: Array, k: int) -> Array:
    """``P_k``, the sum of the first ``k`` singular triples of a matrix ``(N, L)``, ``0 <= k <= min(N, L)``."""
    u, values, v_t = _svd(matrix)
    _check_rank(k, values.size)
    return (u[:, :k] * values[:k]) @ v_t[:k]  # (N, L)


@plain_numbers
def tail_frobenius(values: Array, k: int) -> float:
    """The right side of (1) from singular values ``(K,)``, largest first."""
    _check_tail(values, k)
    return float(np.linalg.norm(values[k:]))


@plain_numbers
def tail_spectral(values: Array, k: int) -> float:
    """The right side of (2) from singular values ``(K,)``, largest first; 0 at full rank."""
    _check_tail(values, k)
    return float(values[k]) if k < values.size else 0.0


@plain_numbers
def competitor(matrix: Array, k: int, kind: Competitor, rng: Generator) -> Array:
    """A random matrix of rank at most ``k`` that tries to be near ``matrix (N, L)``.

    Parameters
    ----------
    matrix : ndarray ``(N, L)``
    k : int
        ``1 <= k <= min(N, L)``.
    kind : {"johnson_lindenstrauss", "projection", "sketch", "power"}
        ``"johnson_lindenstrauss"``: ``P R^T R`` of Linformer's Theorem 1, which is right on average, not near.
        ``"projection"``: the rows of ``P`` projected on ``k`` random orthogonal directions. ``"sketch"``: its columns
        projected on the span of ``P G``, ``G (L, k)`` normal (the randomised range finder). ``"power"``: the same after
        three rounds of subspace iteration, which tends to the truncated SVD.
    rng : Generator
    """
    _check_matrix(matrix)
    check_sizes(k=k)
    check_choice("kind", kind, COMPETITORS)
    length, dtype = matrix.shape[1], matrix.dtype
    _check_rank(k, min(matrix.shape))
    if kind == "johnson_lindenstrauss":
        r = gaussian_projection(k, length, rng, dtype=dtype)  # (k, L)
        return (matrix @ r.T) @ r
    basis = _orthonormal(rng.standard_normal((length, k), dtype))  # (L, k)
    if kind == "projection":
        return (matrix @ basis) @ basis.T
    for _ in range(3 if kind == "power" else 0):
        basis = _orthonormal(matrix.T @ _orthonormal(matrix @ basis))
    range_basis = _orthonormal(matrix @ basis)  # (N, k)
    return range_basis @ (range_basis.T @ matrix)


class RankError(NamedTuple):
    """The error at one rank in both norms: stated (the spectrum's tail), measured, and what competitors reach."""

    rank: int
    stated_frobenius: float  # (1), right side
    measured_frobenius: float  # (1), left side: |P - P_k|_F
    stated_spectral: float  # (2), right side
    measured_spectral: float  # (2), left side: |P - P_k|_2
    competitors_frobenius: dict[str, float]  # the smallest of `draws` errors, by kind
    competitors_spectral: dict[str, float]


@plain_numbers
def rank_errors(matrix: Array, ranks: Sequence[int], *, rng: Generator, draws: int = 8) -> list[RankError]:
    """(1) and (2), left side beside right side, and what random competitors of the same rank reach.

    Parameters
    ----------
    matrix : ndarray ``(N, L)``
    ranks : sequence of int
        Each ``1 <= k <= min(N, L)``.
    rng : Generator
    draws : int
        Competitors of each kind.
    """
    check_sizes(draws=draws)
    u, values, v_t = _svd(matrix)
    results = []
    for k in map(plain, ranks):
        check_sizes(ranks=k)
        _check_rank(k, values.size, "ranks")
        residual = matrix - (u[:, :k] * values[:k]) @ v_t[:k]
        best = {kind: _best(matrix, k, kind, draws, rng) for kind in COMPETITORS}
        results.append(
            RankError(
                k,
                tail_frobenius(values, k),
                float(np.linalg.norm(residual)),
                tail_spectral(values, k),
                _spectral(residual),
                {kind: errors[0] for kind, errors in best.items()},
                {kind: errors[1] for kind, errors in best.items()},
            )
        )
    return results


def _best(matrix: Array, k: int, kind: Competitor, draws: int, rng: Generator) -> tuple[float, float]:
    """The smallest Frobenius and the smallest spectral error of ``draws`` competitors."""
    residuals = [matrix - competitor(matrix, k, kind, rng) for _ in range(draws)]
    return min(float(np.linalg.norm(r)) for r in residuals), min(_spectral(r) for r in residuals)


def _spectral(matrix: Array) -> float:
    return float(scipy.linalg.svdvals(matrix)[0])


def _orthonormal(columns: Array) -> Array:
    return scipy.linalg.qr(columns, mode="economic")[0]


def _svd(matrix: Array) -> tuple[Array, Array, Array]:
    _check_matrix(matrix)
    return scipy.linalg.svd(matrix, full_matrices=False, check_finite=False)


def _check_matrix(matrix: Array) -> None:
    check_array("matrix", matrix)
    if matrix.ndim != 2 or not np.isfinite(matrix).all():
        raise ValueError(f"matrix: expected one finite matrix (N, L), got shape {matrix.shape}")


def _check_tail(values: Array, k: int) -> None:
    check_vector("values", values)
    check_values(values)
    _check_rank(k, values.size)


def _check_rank(k: int, largest: int, name: str = "k") -> None:
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 0 <= k <= largest:
        raise ValueError(f"{name}: expected an integer from 0 to {largest}, got {k!r}")
