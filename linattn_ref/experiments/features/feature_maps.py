"""Feature maps in numbers: the error of a truncated exponential, and the length from which a feature map pays.

The truncated series of order ``p`` is off by at most its remainder, with ``t = x.y``

    |phi(x).phi(y) - exp(t)| <= |t|^(p+1) / (p+1)! * max(1, exp(t))                                  (1)

Multiply-adds of a forward pass, ``N`` queries and ``L`` keys, counted while the package's code runs:

    softmax:  N L (D + M)             scores, and the product with V
    linear:   L C M + N C M + N C     S, phi(Q) S, and the denominators phi(Q) Z

With ``N = L`` the second is the smaller one where

    N > C (2M + 1) / (D + M)                                                                         (2)

The right side is about ``C`` where ``M = D``. What it takes to make the features is not counted: elementwise operations
alone, for ``quadratic`` and ``taylor_exp`` one or two products per feature, which is then used in ``M`` multiply-adds.
"""

import math
from functools import partial

import numpy as np

from linattn_ref.attention import linear, softmax
from linattn_ref.attention.features import feature_maps
from linattn_ref.attention.features.feature_maps import FeatureMap
from linattn_ref.experiments.measuring.counting import count
from linattn_ref.experiments.publishing.kit import Array, Figure, Ints, Results, labels, style
from linattn_ref.theory.dimension_growth import smallest

__all__ = ["MAPS", "compute", "crossover", "crossover_formula", "draw", "remainder_bound"]

MAPS: tuple[FeatureMap, ...] = (feature_maps.elu_plus_one, feature_maps.quadratic(1.0), feature_maps.taylor_exp(2))
ORDERS = (1, 2, 4, 8)  # of `taylor_exp`
SCORES = np.linspace(-8, 8, 65)  # x.y of pairs of vectors
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)
# Of each map: its marker, its colour and its name in words
LOOKS = (
    ("o", style.MECHANISMS["linear"], "elu + 1"),
    ("s", style.SKY, "quadratic"),
    ("^", style.PURPLE, "Taylor,\norder 2"),
)


QUICK = {"lengths": LENGTHS[:5], "widths": (4, 8)}


def compute(*, seed: int = 0, lengths: Ints = LENGTHS, width: int = 16, widths: Ints = (4, 8, 16, 32)) -> Results:
    """Measure the errors and count.

    Parameters
    ----------
    seed : int
        Draws the pairs; no count depends on it.
    lengths, width
        ``N = L`` and ``D = M`` of the middle panel.
    widths : sequence of int
        ``D = M`` of the right panel.
    """
    x, y = pairs_with_scores(SCORES, np.random.default_rng(seed))
    return Results(  # of a feature map by its name
        orders=ORDERS,  # (O,)
        scores=SCORES,  # (P,)
        errors=np.array([truncation_errors(x, y, p) / np.exp(SCORES) for p in ORDERS]),  # (O, P), over exp(x.y)
        lengths=np.array(lengths, np.int64),  # (T,), N = L
        width=width,  # D = M of the counts
        softmax=np.array([multiply_adds(None, n, width, width) for n in lengths]),  # (T,), multiply-adds counted
        linear={phi.name: np.array([multiply_adds(phi, n, width, width) for n in lengths]) for phi in MAPS},
        widths=np.array(widths, np.int64),  # (W,), D = M of the crossovers
        crossovers={phi.name: np.array([crossover(phi, d, d) for d in widths]) for phi in MAPS},  # least N that pays
    )


# --- The truncated exponential --------------------------------------------------------------------------------------


def pairs_with_scores(scores: Array, rng: np.random.Generator, width: int = 3) -> tuple[Array, Array]:
    """Random ``x`` and ``y (P, width)`` with ``x.y = scores (P,)``: ``y`` along unit ``x``, and more across it."""
    x, y = rng.standard_normal((2, len(scores), width))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    y += x * (scores - (x * y).sum(axis=-1))[:, None]
    return x, y


def truncation_errors(x: Array, y: Array, order: int) -> Array:
    """``|phi(x) . phi(y) - exp(x.y)|`` of pairs ``(P, D)``, ``phi`` the map ``taylor_exp(order)``."""
    phi = feature_maps.taylor_exp(order).forward
    return abs((phi(x)[0] * phi(y)[0]).sum(axis=-1) - np.exp((x * y).sum(axis=-1)))


def remainder_bound(score: Array, order: int) -> Array:
    """The right side of (1)."""
    return abs(score) ** (order + 1) / math.factorial(order + 1) * np.maximum(1, np.exp(score))  # (1)


# --- Multiply-adds --------------------------------------------------------------------------------------------------


def multiply_adds(feature_map: FeatureMap | None, n: int, key_width: int, value_width: int) -> int:
    """Of a forward pass over ``N = L = n``, counted: of linear attention or, without a feature map, of softmax."""
    qk, v = np.zeros((n, key_width), np.float32), np.zeros((n, value_width), np.float32)
    forward = partial(linear.forward, feature_map=feature_map) if feature_map else softmax.forward
    return count(forward, qk, qk, v).multiply_adds


def crossover(feature_map: FeatureMap, key_width: int, value_width: int) -> int:
    """The least ``N = L`` at which linear attention takes fewer multiply-adds than softmax, found by counting."""

    def pays(n: int) -> bool:
        return multiply_adds(feature_map, n, key_width, value_width) < multiply_adds(None, n, key_width, value_width)

    # One is linear in N and the other quadratic: once it pays, it pays at every greater length.
    return smallest(pays)


def crossover_formula(features: int, key_width: int, value_width: int) -> float:
    """The right side of (2)."""
    return features * (2 * value_width + 1) / (key_width + value_width)  # (2)


# --- The figure -----------------------------------------------------------------------------------------------------


def draw(results: Results) -> Figure:
    """Left: exp(x.y) cut off after some orders, its error relative to exp(x.y) (points) and the bound by Taylor's
    remainder (lines); above the dashed line nothing is left of the value. Middle: multiply-adds of a forward pass,
    counted (points) and by formula (lines). Right: the length from which a feature map needs fewer than softmax,
    found by counting (points) and by formula (lines). It is about the number of features: D for elu + 1, half of D
    squared for the quadratic kernel's monomials, D squared where all products are kept.
    """
    figure, (left, middle, right) = style.figure(1, 3, height=0.42)
    grid = np.linspace(results.scores.min(), results.scores.max(), 201)
    for p, errors, shade in zip(results.orders, results.errors, style.sequence(len(results.orders)), strict=True):
        left.plot(results.scores, errors, ".", color=shade)
        left.plot(grid, remainder_bound(grid, p) / np.exp(grid), "-", color=shade, label=f"order {p}")
    left.axhline(1, linestyle="--", color=style.GREY)
    left.set(title="error of exp(x·y), cut off", xlabel="score x·y", ylabel="relative error")
    left.set(yscale="log", ylim=(1e-8, 1e6))
    labels.at_ends(left)

    n, d, widths = results.lengths, results.width, results.widths
    black = style.MECHANISMS["softmax"]
    middle.plot(n, results.softmax, "D", color=black)
    middle.plot(n, 2 * n**2 * d, "-", color=black, label="softmax")
    for phi, (marker, colour, name) in zip(MAPS, LOOKS, strict=True):
        middle.plot(n, results.linear[phi.name], marker, color=colour)
        middle.plot(n, n * phi.width(d) * (2 * d + 1), "-", color=colour, label=name)
        right.plot(widths, results.crossovers[phi.name], marker, color=colour)
        formula = [crossover_formula(phi.width(int(each)), each, each) for each in widths]
        right.plot(widths, formula, "-", color=colour, label=name)
    middle.set(title=f"multiply-adds, D = {d}", xscale="log", yscale="log", xlabel="length N (tokens)")
    labels.ticks(middle, n[::2])
    labels.at_ends(middle)

    right.plot(widths, widths**2, "--", color=style.GREY, label="$D^2$")
    right.set(title="crossover length N", xscale="log", yscale="log", xlabel="width D = M")
    labels.ticks(right, widths)
    right.set_ylim(right.get_ylim()[0], 2 * right.get_ylim()[1])
    labels.at_ends(right)
    return figure
