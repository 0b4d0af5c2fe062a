"""How often two vectors at an angle share a bucket of the angular hash that Reformer uses.

    h(x) = argmax([x R ; -x R]),   R (D, B/2) standard normal        (1)

For two vectors of length 1 with cosine ``rho``, each column of ``R`` gives a pair of normal numbers ``(x, y)`` with
correlation ``rho``, the columns independent of each other, whatever ``D`` is. The bucket is the number that is
largest in absolute value, with its sign. Both vectors are in the same one of ``B`` buckets if a column has ``x, y > 0``
(or both negative) and all others are smaller in absolute value, in both:

    Pr(h(x) = h(y)) = B int_0^inf int_0^inf phi_rho(x, y) G(x, y)^(B/2 - 1) dx dy     (2)
    G(x, y) = Pr(|X| < x, |Y| < y)

For ``B = 2`` that is ``1 - theta / pi`` (3), the probability that a random hyperplane does not separate the two. For
many buckets (Andoni et al., Theorem 1)

    Pr(h(x) = h(y)) = B^(-(1 - rho) / (1 + rho) + o(1))               (4)

so that doubling ``B`` divides it by a constant that is small for small angles and large for large ones.

References
----------
Andoni et al. (2015), "Practical and optimal LSH for angular distance", Theorem 1.
Charikar (2002), "Similarity estimation techniques from rounding algorithms" (3).
Kitaev, Kaiser and Levskaya (2020), "Reformer: the efficient transformer", section 2.
"""

import math

import numpy as np
from numpy.random import Generator

from linattn_ref.attention.parts.lsh_hashing import buckets, check_counts, draw_rotations
from linattn_ref.op import Array, plain_numbers
from linattn_ref.op.options import check_sizes

__all__ = ["asymptotic_exponent", "collision_probability", "measured_collisions"]

LARGEST = 7.0  # a normal number is beyond it once in 10^11 times


@plain_numbers
def collision_probability(cosine: float, n_buckets: int, *, points: int = 500) -> float:
    """Equation (2), by a sum over a grid of ``points x points`` midpoints.

    Parameters
    ----------
    cosine : float
        ``rho``. Beyond 0.99 the density is narrower than the default grid.
    n_buckets : int
        ``B``, even.
    points : int
        The error falls with its square: some 1e-4 unless given.

    Raises
    ------
    ValueError
        A cosine outside -1 to 1, or an odd number of buckets.
    """
    _check_cosine(cosine)
    check_sizes(points=points)
    check_counts(1, 1, n_buckets)
    if abs(cosine) == 1:
        return float(cosine > 0)
    step = LARGEST / points
    x = (np.arange(points) + 0.5) * step  # (points,)
    same_sign, other_sign = _density(x[:, None], x, cosine), _density(x[:, None], -x, cosine)  # (points, points)
    cells = 2 * (same_sign + other_sign) * step**2
    corner = cells.cumsum(axis=0).cumsum(axis=1)  # G at the far corner of each cell
    padded = np.pad(corner, ((1, 0), (1, 0)))
    inside = (padded[1:, 1:] + padded[1:, :-1] + padded[:-1, 1:] + padded[:-1, :-1]) / 4  # G at its middle
    return float(n_buckets * (same_sign * inside ** (n_buckets // 2 - 1)).sum() * step**2)  # (2)


def _density(x: Array, y: Array, correlation: float) -> Array:
    """Of two standard normal numbers with a correlation."""
    rest = 1 - correlation**2
    return np.exp(-(x**2 - 2 * correlation * x * y + y**2) / (2 * rest)) / (2 * np.pi * np.sqrt(rest))


@plain_numbers
def asymptotic_exponent(cosine: float) -> float:
    """``(1 - rho) / (1 + rho)`` of (4); infinite for opposite vectors."""
    _check_cosine(cosine)
    return (1 - cosine) / (1 + cosine) if cosine > -1 else math.inf


def _check_cosine(cosine: float) -> None:
    if not -1 <= cosine <= 1:
        raise ValueError(f"cosine: expected a number from -1 to 1, got {cosine}")


@plain_numbers
def measured_collisions(cosine: float, n_buckets: int, width: int, trials: int, rng: Generator) -> float:
    """The share of ``trials`` random hashes in which two vectors ``(width,)`` at a given cosine share their bucket."""
    _check_cosine(cosine)
    check_sizes(width=width, trials=trials)
    if width < 2:
        raise ValueError(f"width: expected an integer of at least 2, got {width}")
    pair = np.zeros((2, width))
    pair[:, 0] = 1
    pair[1, :2] = cosine, np.sqrt(1 - cosine**2)
    found = buckets(pair, draw_rotations(trials, width, n_buckets, rng))  # (trials, 2)
    return float((found[:, 0] == found[:, 1]).mean())
