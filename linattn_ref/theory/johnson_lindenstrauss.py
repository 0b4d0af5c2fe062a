"""The Johnson-Lindenstrauss lemma: a random projection keeps lengths, distances and inner products.

Let ``R (k, n)`` have independent entries of mean 0 and variance ``1/k``, normal or ``+-1/sqrt(k)``, and let
``0 < eps < 1``. For any fixed vector ``x``,

    Pr(| |Rx|^2 - |x|^2 | > eps |x|^2) <= 2 exp(-(eps^2 - eps^3) k / 4)                       (1)

for ``m`` points, whose ``m (m - 1) / 2`` differences are such vectors, by the union bound

    Pr(some squared distance is off by more than eps) <= m (m - 1) exp(-(eps^2 - eps^3) k / 4)  (2)

and for the inner product of two vectors

    Pr(|x^T R^T R y - x^T y| > eps |x| |y|) <= 2 exp(-(eps^2 - eps^3) k / 4)                   (3)

The right side contains neither ``n`` nor the vectors: ``k`` depends on ``eps`` and the failure probability alone.

What is exact for normal entries
--------------------------------
``k |Rx|^2 / |x|^2`` is chi-squared with ``k`` degrees of freedom, so the left side of (1) is known exactly. For (3)
take unit vectors at the cosine ``c``: ``x + y`` and ``x - y`` are orthogonal, with squared lengths ``2 + 2c`` and
``2 - 2c``, so their projections are independent, and from ``4 x^T y = |x + y|^2 - |x - y|^2``

    x^T R^T R y = (1 + c)/2 U - (1 - c)/2 W,    k U and k W independent chi-squared with k degrees         (4)

Its standard deviation is ``sqrt((1 + c^2) / k)``. As a function of ``c``, the logarithm of the moment generating
function of (4) minus ``c`` falls and then rises, so it is largest at ``c = +-1``; there (3) is (1), and Chernoff's
bound, which (1) is, serves both with the same constant 2.

Why the right side of (3) must be ``|x| |y|``
----------------------------------------------
The Linformer paper prints its Lemma 1, equation (12), with ``eps |xy|``; its proof of Theorem 1, equation (19), reads
that as the inner product itself, ``eps |x y^T|``. This is false for vectors that are not nearly parallel: the error in
(4) has size ``1/sqrt(k)`` whatever ``c`` is, so relative to ``|c|`` it fails with a probability that tends to 1 as
``c`` tends to 0, for every ``k``. `inner_product_failure` gives that probability too: call it with ``eps * abs(c)``.

References
----------
Johnson and Lindenstrauss (1984), "Extensions of Lipschitz mappings into a Hilbert space".
Arriaga and Vempala (2006), "An algorithmic theory of learning: robust concepts and random projection" (the form (1)).
Achlioptas (2003), "Database-friendly random projections" (signs: the same bound; its ``eps^3`` has the factor 2/3).
Wang et al. (2020), "Linformer: self-attention with linear complexity", Lemma 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.integrate
import scipy.special
import scipy.stats
from numpy.random import Generator
from numpy.typing import ArrayLike, DTypeLike, NDArray

from linattn_ref.op import Array, plain_numbers
from linattn_ref.op.options import check_sizes
from linattn_ref.op.shapes import check_array

__all__ = ["Failure", "Projection", "check_eps", "check_not_zero", "check_probability", "check_vector"]
__all__ += ["clopper_pearson", "count_failures", "failure_bound", "gaussian_projection", "inner_product_failure"]
__all__ += ["norm_errors", "norm_failure", "pairwise_errors", "required_dimension", "sign_projection"]

Projection = Callable[..., Array]
BLOCK = 1 << 22  # random numbers drawn at once: 32 MiB of float64


# --- Projections ----------------------------------------------------------------------------------------------------


@plain_numbers
def gaussian_projection(
    k: int, n: int, rng: Generator, *, leading: tuple[int, ...] = (), dtype: DTypeLike = np.float64
) -> Array:
    """``R (*leading, k, n)`` with independent ``N(0, 1/k)`` entries: ``E |Rx|^2 = |x|^2``."""
    check_sizes(k=k, n=n)
    real: Any = np.dtype(dtype)
    return rng.standard_normal((*leading, k, n), real) * real.type(1 / math.sqrt(k))


@plain_numbers
def sign_projection(
    k: int, n: int, rng: Generator, *, leading: tuple[int, ...] = (), dtype: DTypeLike = np.float64
) -> Array:
    """``R (*leading, k, n)`` with independent entries ``+1/sqrt(k)`` or ``-1/sqrt(k)``, each with probability 1/2."""
    check_sizes(k=k, n=n)
    signs = 2 * rng.integers(0, 2, (*leading, k, n), np.int8) - 1
    real: Any = np.dtype(dtype)
    return signs * real.type(1 / math.sqrt(k))


# --- What the lemma states ------------------------------------------------------------------------------------------


def failure_bound(eps: ArrayLike, k: ArrayLike) -> Any:
    """The right side of (1) and (3), ``2 exp(-(eps^2 - eps^3) k / 4)``; above 1 it says nothing."""
    eps = check_eps(eps)
    return 2 * np.exp(-(eps**2 - eps**3) * _check_dimension(k) / 4)


@plain_numbers
def required_dimension(eps: float, failure: float, *, vectors: int = 1) -> int:
    """The smallest ``k`` at which the bound for ``vectors`` vectors at once is at most ``failure``.

    Parameters
    ----------
    eps : float
        ``0 < eps < 1``.
    failure : float
        Allowed probability that any one of the vectors fails, ``0 < failure < 1``.
    vectors : int
        ``m (m - 1) / 2`` for the distances of ``m`` points.
    """
    eps = float(check_eps(eps))
    check_probability("failure", failure)
    check_sizes(vectors=vectors)
    return math.ceil(4 * math.log(2 * vectors / failure) / (eps**2 - eps**3))


def norm_failure(eps: ArrayLike, k: ArrayLike) -> Any:
    """The left side of (1), exactly, for normal entries: two tails of a chi-squared distribution."""
    eps, k = check_eps(eps), _check_dimension(k)
    return scipy.stats.chi2.cdf(k * (1 - eps), k) + scipy.stats.chi2.sf(k * (1 + eps), k)


@plain_numbers
def inner_product_failure(cosine: float, eps: float, k: int) -> float:
    """The left side of (3), exactly, for normal entries and vectors at the given cosine.

    With ``W`` in (4) held fixed, what is left are tails of ``U``; the integral over ``W`` is done numerically, to 1e-8.

    Parameters
    ----------
    cosine : float
        Of the angle between ``x`` and ``y``, in ``[-1, 1]``.
    eps : float
        Allowed error in units of ``|x| |y|``, ``eps > 0``; for one relative to ``|x^T y|``, give ``eps * abs(cosine)``.
    k : int
    """
    check_sizes(k=k)
    if not -1 <= cosine <= 1:
        raise ValueError(f"cosine: expected a number in [-1, 1], got {cosine!r}")
    if not eps > 0:
        raise ValueError(f"eps: expected eps > 0, got {eps!r}")
    c = abs(cosine)  # replacing y by -y changes nothing but the sign
    a, b = (1 + c) / 2, (1 - c) / 2
    log_norm = (k / 2 - 1) * math.log(2) + math.lgamma(k / 2)  # of the density of sqrt(k W), smooth for every k

    def failing(root: float) -> float:
        density = math.exp((k - 1) * math.log(root) - root**2 / 2 - log_norm)
        middle = k * c + b * root**2  # a k U outside middle +- k eps fails, by (4)
        upper, lower = scipy.special.chdtrc(k, (middle + k * eps) / a), scipy.special.chdtr(k, (middle - k * eps) / a)
        return density * (upper + (lower if middle > k * eps else 0.0))

    low, high = math.sqrt(scipy.stats.chi2.ppf(1e-15, k)), math.sqrt(scipy.stats.chi2.isf(1e-15, k))
    kink = math.sqrt(max(0.0, k * (eps - c) / b)) if b else 0.0  # below it no lower tail is left
    points = [kink] if low < kink < high else None
    return float(scipy.integrate.quad(failing, low, high, points=points, limit=200)[0])


# --- What is measured -----------------------------------------------------------------------------------------------


class Failure(NamedTuple):
    """A failure probability: the bound, and what was counted."""

    stated: float  # the bound, at most 1
    measured: float  # failures / trials
    low: float  # confidence interval of the true probability
    high: float
    failures: int
    trials: int


@plain_numbers
def clopper_pearson(failures: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact (Clopper-Pearson) confidence interval of a probability from a count.

    It is found by inverting the binomial distribution's tails and covers the truth with *at least* ``confidence``,
    also where nothing or everything failed.
    """
    check_sizes(trials=trials)
    check_probability("confidence", confidence)
    if not 0 <= failures <= trials:
        raise ValueError(f"failures: expected 0 <= failures <= trials = {trials}, got {failures!r}")
    tail = (1 - confidence) / 2
    low = scipy.stats.beta.ppf(tail, failures, trials - failures + 1) if failures > 0 else 0.0
    high = scipy.stats.beta.isf(tail, failures + 1, trials - failures) if failures < trials else 1.0
    return float(low), float(high)


@plain_numbers
def count_failures(errors: Array, eps: float, stated: float, *, confidence: float = 0.95) -> Failure:
    """How often ``errors (trials,)`` exceed ``eps``, with the Clopper-Pearson interval, and the ``stated`` bound."""
    check_vector("errors", errors)
    failures, trials = int(np.count_nonzero(~(errors <= eps))), errors.size
    low, high = clopper_pearson(failures, trials, confidence)
    return Failure(min(1.0, float(stated)), failures / trials, low, high, failures, trials)


@plain_numbers
def norm_errors(
    x: Array, k: int, *, trials: int, rng: Generator, projection: Projection = gaussian_projection
) -> Array:
    """``| |Rx|^2 / |x|^2 - 1 |`` for independent draws of ``R``: the error in (1).

    Parameters
    ----------
    x : ndarray ``(n,)``
        Not 0.
    k : int
        Rows of ``R``.
    trials : int
        Draws of ``R``; blocks of them are drawn at once.
    rng : Generator
    projection : callable
        `gaussian_projection` or `sign_projection`.

    Returns
    -------
    ndarray ``(trials,)``
    """
    check_not_zero("x", x)
    return pairwise_errors(np.stack([np.zeros_like(x), x]), k, trials=trials, rng=rng, projection=projection)[:, 0]


@plain_numbers
def pairwise_errors(
    points: Array, k: int, *, trials: int, rng: Generator, projection: Projection = gaussian_projection
) -> Array:
    """The relative error of every pair's squared distance, for independent draws of ``R``: the errors in (2).

    Parameters
    ----------
    points : ndarray ``(m, n)``
        At least two, all different.
    k, trials, rng, projection
        As in `norm_errors`.

    Returns
    -------
    ndarray ``(trials, m (m - 1) / 2)``
        In the order of ``scipy.spatial.distance.pdist``; event (2) is ``errors.max(axis=1) > eps``.
    """
    check_array("points", points)
    check_sizes(k=k, trials=trials)
    if points.ndim != 2 or len(points) < 2 or not np.isfinite(points).all():
        raise ValueError(f"points: expected at least two finite points, (m, n), got shape {points.shape}: {points}")
    first, second = np.triu_indices(len(points), 1)
    differences = of_size_1(points[first] - points[second])  # (pairs, n)
    if not differences.any(axis=1).all():
        raise ValueError("points: expected different points, got two that are equal")
    squared = np.sum(differences**2, axis=1)  # (pairs,)
    errors = np.empty((trials, first.size), points.dtype)
    n = points.shape[1]
    block = max(1, BLOCK // (k * max(n, first.size)))
    for start in range(0, trials, block):
        count = min(block, trials - start)
        r = projection(k, n, rng, leading=(count,), dtype=points.dtype)  # (count, k, n)
        projected = r @ differences.T  # (count, k, pairs)
        errors[start : start + count] = np.abs(np.sum(projected**2, axis=1) / squared - 1)
    return errors


def of_size_1(x: Array) -> Array:
    """Rows, each times a power of 2 that brings its largest number near 1: what is relative stays, squares exist."""
    _, exponent = np.frexp(abs(x).max(axis=-1, keepdims=True))
    return np.ldexp(x, -exponent)


# --- Arguments ------------------------------------------------------------------------------------------------------


def check_eps(eps: ArrayLike) -> NDArray[np.float64]:
    """``eps`` as an array, every entry strictly between 0 and 1."""
    values = np.asarray(eps, np.float64)
    if not ((values > 0) & (values < 1)).all():
        raise ValueError(f"eps: expected 0 < eps < 1, got {eps!r}")
    return values


def check_probability(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name}: expected a probability strictly between 0 and 1, got {value!r}")


def _check_dimension(k: ArrayLike) -> NDArray[Any]:
    values = np.asarray(k)
    if not (values >= 1).all():
        raise ValueError(f"k: expected at least 1, got {k!r}")
    return values


def check_vector(name: str, x: Array) -> None:
    """``x`` is a float array ``(n,)``."""
    check_array(name, x, ndim=1)
    if x.ndim != 1:
        raise ValueError(f"{name}: expected a vector (n,), got shape {x.shape}")


def check_not_zero(name: str, x: Array) -> None:
    """``x`` is a vector with a direction."""
    check_vector(name, x)
    if not np.any(x) or not np.isfinite(x).all():
        raise ValueError(f"{name}: expected a finite vector (n,) that is not 0, got {x}")
