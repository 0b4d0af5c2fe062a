"""How many iterations the pseudo-inverse needs: the matrix's condition decides, and real landmarks' is large.

Iteration (2) of ``linattn_ref.attention.parts.pinv_iterative`` acts on each singular value ``sigma`` alone. Let ``t``
be what it has been inverted to, times ``sigma``: 0 at first, 1 when done. Then, with ``c = |A|_1 |A|_inf``,

    t_0 = sigma^2 / c                                        (1)
    t <- t (13 - 15 t + 7 t^2 - t^3) / 4                     (2)

which is ``13/4 t`` while ``t`` is small, and ``1 - t <- (3 (1 - t)^3 + (1 - t)^4) / 4`` (3) near the end. Measured
against it: matrices of prescribed condition, what six iterations make of each singular value, and the landmark matrices
of a real pretrained network.

It is compared with the iteration of Newton and Schulz, ``Z <- Z (2 I - A Z)``: ``1 - t <- (1 - t)^2`` (4) takes two
products of matrices where (2) takes four, so two of its steps cost the same, and make ``(1 - t)^4``.

References
----------
Razavi, Kerayechian, Gachpazan and Shateyi (2014), "A new iterative method for finding approximate inverses of complex
matrices".
Schulz (1933), "Iterative Berechnung der reziproken Matrix".
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.optimize
from threadpoolctl import threadpool_limits

from linattn_ref.attention import softmax
from linattn_ref.attention.parts import pinv_exact, pinv_iterative, segment_means
from linattn_ref.experiments.measuring.heads import Heads, Random, Source, heads_from
from linattn_ref.experiments.publishing.kit import Array, Figure, Generator, Ints, Results, labels, style

__all__ = ["compute", "draw", "inverted_share", "reach", "with_condition"]


MOST_ITERATIONS = 20
FILTERED_ITERATIONS = (2, 6, 10, 14)  # of the curves in the middle
QUICK = {"heads": Random(sentences=2), "conditions": (1.0, 30.0), "size": 8, "landmarks": (4, 16)}


def compute(
    *,
    seed: int = 0,
    heads: Heads | Source | Random = Source(sentences=4),  # noqa: B008  # a tuple
    conditions: Sequence[float] = (1.0, 10.0, 100.0, 1000.0, 10000.0),
    size: int = 32,
    landmarks: Ints = (8, 16, 32, 64, 128, 256),
) -> Results:
    """Measure all three.

    Parameters
    ----------
    seed : int
        Of the matrices and the choice of sentences.
    heads : Heads, Source or Random
        Whose landmarks; by default all heads of a pretrained network on a text.
    conditions, size : sequence of float, int
        Of the matrices on the left: largest over smallest singular value, and how many rows and columns.
    landmarks : sequence of int
        ``R`` on the right; those above the length are left out.
    """
    rng = np.random.default_rng(seed)
    with threadpool_limits(1):
        runs = [converge(with_condition(size, kappa, rng), MOST_ITERATIONS) for kappa in conditions]
        measured, starts = zip(*runs, strict=True)
        found, sources = heads_from(heads, seed, rng)
        landmarks = tuple(r for r in landmarks if r <= found.q.shape[-2])
        if not landmarks:
            raise ValueError(f"landmarks: expected one of at most {found.q.shape[-2]}, the length")
        real = np.stack([condition_by_layer(found, r) for r in landmarks])
    values = np.geomspace(1e-4, 1, 200)
    return Results(
        conditions=tuple(conditions),  # (C,)
        size=size,  # R
        most_iterations=MOST_ITERATIONS,  # I
        measured=np.stack(measured),  # (C, I + 1), |Z - A^+| / |A^+|, spectral norms
        predicted=np.stack([1 - inverted_share(x, MOST_ITERATIONS) for x in starts]),  # 1 - t of the smallest value
        newton=np.stack([newton_error(x, MOST_ITERATIONS) for x in starts]),  # for two Newton-Schulz steps each
        filtered_iterations=FILTERED_ITERATIONS,  # (F,)
        singular_values=values,  # (S,), over sqrt(c)
        filtered=np.stack([inverted_share(values**2, n)[-1] for n in FILTERED_ITERATIONS]),  # (F, S), t
        landmarks=landmarks,  # (K,), R
        real=real,  # (K, T), median condition number by layer
        reach=reach(6),  # the condition with t = 1/2 after six iterations
        settings={**sources, "seed": seed, "sentences": len(found.q)},
    )


# --- The recursion --------------------------------------------------------------------------------------------------


def inverted_share(start: Any, iterations: int) -> Array:
    """``t`` after 0 to ``iterations`` iterations (2) from ``start``, ``(I + 1, ...)``."""
    t = np.asarray(start, np.float64)
    shares = [t]
    for _ in range(iterations):
        t = t * (13 - 15 * t + 7 * t**2 - t**3) / 4  # (2)
        shares.append(t)
    return np.stack(shares)


def newton_error(start: float, iterations: int) -> Array:
    """``1 - t`` after 0 to ``iterations`` double steps of Newton and Schulz (4), ``(I + 1,)``."""
    return (1 - start) ** (4.0 ** np.arange(iterations + 1))


def reach(iterations: int) -> float:
    """The largest ``sqrt(c) / sigma`` with ``t >= 1/2`` after so many iterations.

    ``sqrt(c)`` is the largest singular value where rows and columns have equal sums, and above it otherwise.
    """

    def above_half(logarithm: float) -> float:
        return float(inverted_share(math.exp(-2 * logarithm), iterations)[-1]) - 0.5

    return math.exp(scipy.optimize.brentq(above_half, 0, 4 * iterations + 1))


# --- Measuring ------------------------------------------------------------------------------------------------------


def with_condition(size: int, condition: float, rng: Generator) -> Array:
    """A random matrix ``(R, R)``, its singular values in equal ratios from 1 to ``1/condition``."""
    u, w = (np.linalg.qr(rng.standard_normal((size, size)))[0] for _ in range(2))
    return (u * np.geomspace(1, 1 / condition, size)) @ w


def converge(a: Array, iterations: int) -> tuple[Array, float]:
    """``|Z - A^+| / |A^+|`` after 0 to ``iterations`` iterations, and the ``t_0`` of the smallest singular value."""
    exact, _ = pinv_exact.forward(a)
    last, saved = pinv_iterative.forward(a, iterations=iterations)
    errors = [np.linalg.norm(z - exact, 2) for z in (*saved.iterates, last)]
    smallest = np.linalg.svd(a, compute_uv=False)[-1]
    one, infinity = (float(norm.item()) for norm in saved.norms)
    return np.array(errors) / np.linalg.norm(exact, 2), float(smallest**2 / (one * infinity))  # (1)


def condition_by_layer(heads: Heads, r: int) -> Array:
    """Median condition number of the landmarks' ``A``, ``(T,)``."""
    q, k = (segment_means.forward(x.astype(np.float64), r)[0] for x in (heads.q, heads.k))  # (S, T, H, R, D)
    return np.median(np.linalg.cond(softmax.matrix(q, k)), axis=(0, 2))  # of (S, T, H)


# --- Drawing --------------------------------------------------------------------------------------------------------


def draw(results: Results) -> Figure:
    """Left: how far the iterative pseudo-inverse is from the exact one (points), for matrices of prescribed condition
    number, and what the recursion for the smallest singular value predicts (lines). A condition number a hundred
    times larger takes some seven iterations more before the error falls at all; then it falls by the third power.
    Two steps of Newton and Schulz, which cost as much as one iteration, are ahead (dotted). Middle: the share of
    1/sigma that a singular value is inverted to. Six iterations are a gentle cut near a fortieth of the scale. Right:
    condition numbers of landmark matrices in a pretrained network, medians by layer, and what six iterations reach at
    best.
    """
    figure, (left, middle, right) = style.figure(1, 3, height=0.46)
    steps = range(results.most_iterations + 1)
    floor = 1e-13
    left.set(title="error, by condition number", xlabel="iterations", ylabel="relative error", yscale="log")
    left.set_ylim(floor, 100)
    for i, (kappa, colour) in enumerate(zip(results.conditions, style.sequence(len(results.conditions)), strict=True)):
        left.plot(steps, np.maximum(results.predicted[i], floor / 10), "-", color=colour, linewidth=1)
        left.plot(steps, np.maximum(results.newton[i], floor / 10), ":", color=colour, linewidth=1)
        left.plot(steps, results.measured[i], "o", color=colour)
        falls = int(np.argmax(results.measured[i] < 0.5))
        labels.at(left, falls, 1, f"{kappa:.0f}" if kappa < 1000 else f"$10^{{{math.log10(kappa):.0f}}}$", colour)
    for look, name in (("o", "measured"), ("-", "recursion"), (":", "Newton–Schulz")):
        left.plot([], [], look, color=style.GREY, label=name)
    under: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2)}  # the label, where no line passes
    left.legend(**under, ncols=3, columnspacing=1, handlelength=1.6, borderpad=0)

    middle.set(title="share of 1/σ reached", xlabel="$\\sigma / \\sqrt{|A|_1 |A|_\\infty}$", xscale="log")
    middle.set_ylim(0, 1.15)
    shades = style.sequence(len(results.filtered))
    for n, shares, colour in zip(results.filtered_iterations, results.filtered, shades, strict=True):
        middle.plot(results.singular_values, shares, color=colour)
        name = f"{n}\nsteps" if n == results.filtered_iterations[0] else str(n)
        half = results.singular_values[int(np.argmax(shares > 0.5))]
        labels.at(middle, half, 0.5, name, colour, xytext=(-3, 0), ha="right", va="center")
    middle.axvline(1 / results.reach, color=style.GREY, linestyle=":")
    labels.at(middle, 1 / results.reach, 1.05, "half, after 6", style.GREY, ha="left", xytext=(3, 0))

    for layer, colour in enumerate(style.sequence(results.real.shape[1])):
        right.plot(results.landmarks, results.real[:, layer], "o-", color=colour, label=f"layer {layer}")
    right.axhline(results.reach, color=style.GREY, linestyle=":", label="6 steps\nreach")
    right.set(title="condition of real landmarks", xlabel="landmarks $R$", xscale="log", yscale="log")
    labels.ticks(right, results.landmarks)
    labels.at_ends(right)
    return figure
