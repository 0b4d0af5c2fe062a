"""Random features: kernels as averages over random directions, and how far the average of ``m`` is off.

Bochner's theorem
-----------------
A continuous function ``kappa`` of ``x - y`` with ``kappa(0) = 1`` is positive semi-definite if and only if it is the
Fourier transform of a probability distribution, from which ``omega`` is drawn:

    kappa(x - y) = E cos(omega . (x - y)) = E [sin(omega.x) sin(omega.y) + cos(omega.x) cos(omega.y)]        (1)

The mean over ``m`` independent directions is an inner product of ``2m`` features. Since
``cos^2 u = (1 + cos 2u) / 2``, its mean squared error is known for every such kernel:

    MSE = [(1 + kappa(2x - 2y)) / 2 - kappa(x - y)^2] / m                                                   (2)

`KERNELS` has four pairs of a kernel and its distribution.

The softmax kernel
------------------
``SM = exp(x.y)`` does not depend on ``x - y`` alone. With ``omega`` from N(0, I) and

    E cos(omega.s) = exp(-|s|^2/2),   E exp(omega.s) = E cosh(omega.s) = exp(|s|^2/2)                       (3)

it is the mean of ``exp((|x|^2+|y|^2)/2) cos(omega.(x-y))`` (``trig``), and of ``exp(-(|x|^2+|y|^2)/2)`` times
``exp(omega.(x+y))`` (``positive``) or ``cosh(omega.(x+y))`` (``hyperbolic``). From (3) at ``2s``, of ``m`` independent
directions,

    MSE(trig)       = exp(|x+y|^2) SM^-2 (1 - exp(-|x-y|^2))^2 / (2m)                                       (4)
    MSE(positive)   = exp(|x+y|^2) SM^2 (1 - exp(-|x+y|^2)) / m                                             (5)
    MSE(hyperbolic) = (1 - exp(-|x+y|^2)) MSE(positive) / 2                                                 (6)

Over ``SM^2``, (4) is ``exp(|x-y|^2) (1 - exp(-|x-y|^2))^2 / (2m)``, a function of ``|x - y|`` alone, and (5) is
``(exp(|x+y|^2) - 1) / m``, a function of ``|x + y|`` alone: trig features are poor where ``x`` and ``y`` are far apart,
which is where ``SM`` is small, and positive ones where they are long and point the same way.

Orthogonal directions
---------------------
Each alone is still N(0, I), so that the means are the same; two of one block are no longer independent. With
``s/|s|``, two orthogonal directions have the inner products ``(u_1, u_2)``, two coordinates of a uniform unit vector.
Their lengths are independent chi variables. With ``E chi^(2i) = 2^i (D/2)_i``, ``(a)_i = a (a+1) ... (a+i-1)``, the sum
over the even powers is

    E exp(omega_1.s) exp(omega_2.s) = sum_n (D)_n / (D/2)_n t^n / n! = 1F1(D; D/2; t),   t = |s|^2/2        (7)

the same for ``cosh``, and with ``-t`` for ``cos``. Independent ones have ``(E exp(omega.s))^2 = exp(2t)``, whose
coefficients ``2^n / n!`` are at least those of (7). So for ``pairs`` ordered pairs of directions in one block (which is
``m (m - 1)`` for ``m <= D``), and ``c`` the factor in front,

    MSE(orthogonal) = MSE(independent) - c^2 pairs / m^2 [exp(2t) - 1F1(D; D/2; t)]                         (8)

is never larger for ``positive`` and ``hyperbolic``. For ``trig`` the bracket is ``exp(-2t) - 1F1(D; D/2; -t)``: above 0
for ``|x - y|`` small, but not always.

With ``regular`` lengths, all ``sqrt(D)``, the mean itself changes, because (3) needs lengths with a chi distribution:

    E exp(omega.s) = 0F1(; D/2; D |s|^2 / 4) < exp(|s|^2/2)                                                  (9)

References
----------
Bochner (1932), "Vorlesungen über Fouriersche Integrale".
Rahimi and Recht (2007), "Random features for large-scale kernel machines" (kernels and their distributions).
Choromanski et al. (2021), "Rethinking attention with Performers", Lemmas 1 and 2 (4)-(6), Theorem 2 (a bound of (8)).
Yu et al. (2016), "Orthogonal random features" (trig).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import scipy.special
import scipy.stats
from numpy.random import Generator

from linattn_ref.attention.features import feature_maps
from linattn_ref.attention.performer import KINDS, Kind
from linattn_ref.op import Array, plain_numbers
from linattn_ref.op.options import check_choice, check_flags, check_sizes
from linattn_ref.op.shapes import check_array
from linattn_ref.theory.johnson_lindenstrauss import check_probability, check_vector

__all__ = ["KERNELS", "UNBIASED", "Kernel", "Measured", "Unbiased", "draw_directions", "estimates", "fourier_features"]
__all__ += ["fourier_mse", "mean_of", "mse", "pairs_in_blocks", "product_of_orthogonal", "regular_mean", "relative_mse"]
__all__ += ["softmax_kernel", "squared_errors"]

Unbiased = Literal["trig", "positive", "hyperbolic"]  # kinds whose mean is SM
UNBIASED: tuple[Unbiased, ...] = get_args(Unbiased)
BLOCK = 1 << 22  # numbers drawn at once: 32 MiB of float64
LARGEST = 700  # of which exp is in float64


# --- Kernels of x - y -----------------------------------------------------------------------------------------------


class Kernel(NamedTuple):
    """A kernel of ``x - y``, and the distribution of the directions that it is the Fourier transform of."""

    kappa: Callable[[Array], Any]  # x - y (..., D) -> (...)
    draw: Callable[[int, int, Generator], Array]  # m, D, rng -> omega (m, D)


KERNELS = {  # sinc is sin(d) / d, and takes negative values
    "gaussian": Kernel(lambda d: np.exp(-(d**2).sum(axis=-1) / 2), lambda m, D, rng: rng.standard_normal((m, D))),
    "laplacian": Kernel(lambda d: np.exp(-abs(d).sum(axis=-1)), lambda m, D, rng: rng.standard_cauchy((m, D))),
    "cauchy": Kernel(lambda d: (1 / (1 + d**2)).prod(axis=-1), lambda m, D, rng: rng.laplace(size=(m, D))),
    "sinc": Kernel(lambda d: np.sinc(d / np.pi).prod(axis=-1), lambda m, D, rng: rng.uniform(-1, 1, size=(m, D))),
}


def fourier_features(x: Array, omega: Array) -> Array:
    """``[sin(omega x), cos(omega x)] / sqrt(m)`` of equation (1), ``(..., D) -> (..., 2m)``."""
    p = x @ omega.T  # (..., m)
    return np.concatenate([np.sin(p), np.cos(p)], axis=-1) / math.sqrt(len(omega))  # (1)


@plain_numbers
def fourier_mse(kernel: Kernel, delta: Array, m: int) -> Any:
    """Equation (2), for ``delta = x - y (..., D)`` and ``m`` directions; right to some ``1e-16 / m``."""
    check_sizes(m=m)
    return ((1 + kernel.kappa(2 * delta)) / 2 - kernel.kappa(delta) ** 2) / m  # (2)


# --- The softmax kernel ---------------------------------------------------------------------------------------------


def softmax_kernel(x: Array, y: Array) -> Any:
    """``SM = exp(x.y)``, ``(..., D), (..., D) -> (...)``."""
    return np.exp((x * y).sum(axis=-1))


@plain_numbers
def relative_mse(kind: Unbiased, x: Array, y: Array, m: int, *, orthogonal: bool = False) -> Any:
    """The mean squared error of ``phi(x) . phi(y)`` over ``exp(x.y)^2``, equations (4)-(6) and (8).

    It is a function of ``|x - y|`` (trig) or ``|x + y|`` (the others), ``D`` and ``m``.

    Parameters
    ----------
    kind : {"trig", "positive", "hyperbolic"}
    x, y : ndarray ``(..., D)``
        As the maps take them: what attention calls ``q / D^(1/4)`` and ``k / D^(1/4)``.
    m : int
        Directions, of which trig and hyperbolic make two features each.
    orthogonal : bool
        Drawn by ``orthogonal_gaussian`` instead of independently.

    Returns
    -------
    ndarray ``(...)``
    """
    check_choice("kind", kind, UNBIASED)
    check_sizes(m=m)
    check_flags(orthogonal=orthogonal)
    check_array("x", x, ndim=1)
    check_array("y", y, ndim=1)
    width, sign = x.shape[-1], -1 if kind == "trig" else 1
    if y.shape[-1] != width:
        raise ValueError(f"y: expected {width} columns like x, got {y.shape[-1]}")
    square = ((x + sign * y) ** 2).sum(axis=-1)  # |s|^2 = 2t
    single = np.expm1(square)  # (5), like all here over SM^2
    if kind != "positive":
        single = single * -np.expm1(-square) / 2  # (4), (6)
    if not orthogonal:
        return single / m
    near = np.minimum(square, LARGEST)  # beyond it the gain is nothing beside `single`, which soon is infinite
    return single / m - pairs_in_blocks(m, width) / m**2 * orthogonal_gain(sign * near / 2, width)  # (8)


def orthogonal_gain(t: Any, width: int) -> Any:
    """The bracket of (8) over ``exp(2t)``; where nearly all of it cancels, by the series without what cancels."""
    small = abs(t) < 0.05
    near = term = np.where(small, t, 0)
    ratio, difference = 2.0, np.zeros_like(near)
    for n in range(2, 12):  # t^n / n!, and (D)_n / (D/2)_n
        term, ratio = term * near / n, ratio * (width + n - 1) / (width / 2 + n - 1)
        difference = difference + (2.0**n - ratio) * term
    return np.where(small, np.exp(-2 * near) * difference, 1 - np.exp(-2 * t) * product_of_orthogonal(t, width))


@plain_numbers
def mse(kind: Unbiased, x: Array, y: Array, m: int, *, orthogonal: bool = False) -> Any:
    """The mean squared error of ``phi(x) . phi(y)`` as an estimate of ``exp(x.y)``; arguments of `relative_mse`."""
    return relative_mse(kind, x, y, m, orthogonal=orthogonal) * softmax_kernel(x, y) ** 2


@plain_numbers
def product_of_orthogonal(t: Any, width: int) -> Any:
    """Equation (7): ``1F1(D; D/2; t)``, the mean product of two features of orthogonal directions."""
    return scipy.special.hyp1f1(width, width / 2, t)  # (7)


@plain_numbers
def pairs_in_blocks(m: int, width: int) -> int:
    """Ordered pairs of different directions in one block: blocks of ``D``, and what is left over."""
    check_sizes(m=m, width=width)
    full, rest = divmod(m, width)
    return full * width * (width - 1) + rest * (rest - 1)


def regular_mean(x: Array, y: Array) -> Any:
    """The mean of ``phi(x) . phi(y)`` of positive or hyperbolic features with ``regular`` lengths, equation (9)."""
    width, square = x.shape[-1], ((x + y) ** 2).sum(axis=-1)
    both = ((x**2).sum(axis=-1) + (y**2).sum(axis=-1)) / 2
    z, order = np.sqrt(width * square), width / 2 - 1
    with np.errstate(all="ignore"):
        series = np.log(scipy.special.hyp0f1(width / 2, z**2 / 4))
        bessel = np.log(scipy.special.ive(order, z)) + z + scipy.special.gammaln(width / 2) - order * np.log(z / 2)
    log_0f1 = np.where(np.isfinite(series), series, bessel)  # beyond float64 by Bessel's function
    return np.exp(log_0f1 - both)  # (9)


# --- Monte Carlo ----------------------------------------------------------------------------------------------------


class Measured(NamedTuple):
    """A mean over independent trials, with its confidence interval."""

    mean: float
    low: float
    high: float
    trials: int


@plain_numbers
def draw_directions(
    m: int, width: int, trials: int, rng: Generator, *, orthogonal: bool = False, regular: bool = False
) -> Array:
    """``trials`` independent ``omega``, ``(trials, m, D)``."""
    check_sizes(m=m, width=width, trials=trials)
    check_flags(orthogonal=orthogonal, regular=regular)
    if regular and not orthogonal:
        raise ValueError("regular: expected orthogonal=True with it, got False")
    if not orthogonal:
        return feature_maps.gaussian(trials * m, width, rng).reshape(trials, m, width)
    rows = -(-m // width) * width  # whole blocks, of which the last one's first rows are used
    return feature_maps.orthogonal_gaussian(trials * rows, width, rng, regular).reshape(trials, rows, width)[:, :m]


def estimates(kind: Kind, x: Array, y: Array, directions: Array) -> Array:
    """``phi(x) . phi(y)`` of each draw, by the package's feature maps.

    Parameters
    ----------
    kind : {"trig", "positive", "hyperbolic", "relu"}
    x, y : ndarray ``(D,)``
    directions : ndarray ``(trials, m, D)``

    Returns
    -------
    ndarray ``(trials,)``
    """
    check_choice("kind", kind, KINDS)
    trials, m, width = directions.shape
    phi = KINDS[kind](directions.reshape(-1, width))  # as if of one draw of trials * m directions
    products = phi.forward(x)[0] * phi.forward(y)[0]  # (C,), C = trials m or 2 trials m
    per_direction = products.reshape(-1, trials, m).sum(axis=0)  # (trials, m)
    return trials * per_direction.sum(axis=-1)  # each over its own m, not over all


@plain_numbers
def squared_errors(
    kind: Kind, x: Array, y: Array, m: int, *, trials: int, rng: Generator, orthogonal: bool = False
) -> Array:
    """``(phi(x) . phi(y) - exp(x.y))^2`` of independent draws, ``(trials,)``, some of them at a time."""
    check_sizes(m=m, trials=trials)
    found = np.empty(trials)
    block = max(1, BLOCK // (m * x.shape[-1]))
    for start in range(0, trials, block):
        count = min(block, trials - start)
        directions = draw_directions(m, x.shape[-1], count, rng, orthogonal=orthogonal)
        found[start : start + count] = (estimates(kind, x, y, directions) - softmax_kernel(x, y)) ** 2
    return found


@plain_numbers
def mean_of(samples: Array, *, confidence: float = 0.95) -> Measured:
    """The mean of independent samples ``(trials,)``, and the interval of the central limit theorem.

    With heavy tails, as products of exponentials have, it takes many samples to be worth its name.
    """
    check_vector("samples", samples)
    check_probability("confidence", confidence)
    if (trials := samples.size) < 2:
        raise ValueError(f"samples: expected at least 2, got {trials}")
    mean, error = float(samples.mean()), float(samples.std(ddof=1)) / math.sqrt(trials)
    spread = float(scipy.stats.norm.isf((1 - confidence) / 2)) * error
    return Measured(mean, mean - spread, mean + spread, trials)
