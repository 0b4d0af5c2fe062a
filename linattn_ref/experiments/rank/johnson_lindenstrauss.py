"""The Johnson-Lindenstrauss lemma measured: errors in lengths and inner products, counted, exact, and their bound."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from linattn_ref.experiments.publishing.kit import Figure, Ints, Results, labels, style
from linattn_ref.theory import johnson_lindenstrauss as jl

__all__ = ["COLOURS", "compute", "draw", "draw_failures"]

PROJECTIONS: dict[str, jl.Projection] = {"gaussian": jl.gaussian_projection, "signs": jl.sign_projection}
COLOURS = (style.BLUE, style.VERMILLION, style.GREEN)
EPSILONS, DIMENSIONS = (0.1, 0.2, 0.4), tuple(2**i for i in range(3, 12))
WIDTH, POINTS = 32, 24  # n, of the vectors projected; m, of the points in the middle panel
INNER_EPS, COSINES = 0.4, (1.0, 0.5, 0.1, 0.01)  # of the panel on inner products


QUICK = {"dimensions": (8, 16, 32, 64, 128), "trials": 200, "fine": 9}


def compute(*, seed: int = 0, dimensions: Ints = DIMENSIONS, trials: int = 2000, fine: int = 41) -> Results:
    """Count failures at every dimension.

    Parameters
    ----------
    seed : int
    dimensions : sequence of int
        The lemma's ``k``.
    trials : int
        Draws of ``R`` for one vector; a quarter as many for the points.
    fine : int
        Points of the lines.
    """
    rng = np.random.default_rng(seed)
    x, cloud = rng.standard_normal(WIDTH), rng.standard_normal((POINTS, WIDTH))
    norms: dict[str, list[list[jl.Failure]]] = {name: [[] for _ in EPSILONS] for name in PROJECTIONS}
    pairs: list[list[jl.Failure]] = [[] for _ in EPSILONS]
    vectors = POINTS * (POINTS - 1) // 2  # the pairs' differences
    for k in dimensions:
        for name, projection in PROJECTIONS.items():
            _count(norms[name], jl.norm_errors(x, k, trials=trials, rng=rng, projection=projection), k, 1)
        worst = jl.pairwise_errors(cloud, k, trials=trials // 4, rng=rng).max(axis=1)
        _count(pairs, worst, k, vectors)
    grid = np.unique(np.geomspace(dimensions[0], dimensions[-1], fine).round().astype(int))
    bound = np.array([jl.failure_bound(eps, grid) for eps in EPSILONS])  # (Q, G)
    inner = [[jl.inner_product_failure(c, INNER_EPS, int(k)) for k in grid] for c in COSINES]
    printed = [[jl.inner_product_failure(c, INNER_EPS * c, int(k)) for k in grid] for c in COSINES]
    return Results(
        epsilons=EPSILONS,  # (Q,)
        dimensions=tuple(dimensions),  # (K,)
        width=WIDTH,
        points=POINTS,
        norms=norms,  # projection -> [Q][K]
        pairs=pairs,  # [Q][K], normal entries, some pair of the points fails
        grid=grid,  # (G,), finer, for lines
        norms_bound=np.minimum(1, bound),  # (Q, G)
        norms_exact=np.array([jl.norm_failure(eps, grid) for eps in EPSILONS]),  # (Q, G), normal entries
        pairs_bound=np.minimum(1, vectors * bound),  # (Q, G)
        inner_eps=INNER_EPS,
        inner_bound=np.minimum(1, jl.failure_bound(INNER_EPS, grid)),  # (G,)
        cosines=COSINES,  # (C,)
        inner_by_norms=np.array(inner),  # (C, G), exact: error above inner_eps |x| |y|
        inner_as_printed=np.array(printed),  # (C, G), exact: error above inner_eps |x.y|
    )


def _count(rows: list[list[jl.Failure]], errors: Any, k: int, vectors: int) -> None:
    for row, eps in zip(rows, EPSILONS, strict=True):
        row.append(jl.count_failures(errors, eps, vectors * jl.failure_bound(eps, k)))


def draw(results: Results) -> Figure:
    """Random projection to k dimensions. Left: how often the squared length of one vector is off by more than eps,
    for normal and sign matrices (points, 95% intervals), the exact probability (lines) and the bound (dashed).
    Middle: the same for the worst of all distances between points. Right: inner products. Relative to |x| |y| the
    bound holds at every angle; relative to |x.y|, as the Linformer paper's proof of Theorem 1 has it, it does not.
    """
    figure, axes = style.figure(1, 3, height=0.5, sharey=True)
    k, floor = np.array(results.dimensions), 0.5 / results.norms["gaussian"][0][0].trials
    inner_title = f"inner product, eps = {results.inner_eps:g}"
    titles = ("one vector's length", f"distances of {results.points} points", inner_title)
    for axis, title in zip(axes, titles, strict=True):
        axis.set(title=title, xlabel="projected dimension k", xscale="log", yscale="log", ylim=(floor, 4))
        labels.ticks(axis, k[::2])
    left, middle, right = axes

    for i, (eps, colour) in enumerate(zip(results.epsilons, COLOURS, strict=False)):
        left.plot(results.grid, results.norms_exact[i], "-", color=colour)
        left.plot(results.grid, results.norms_bound[i], "--", color=colour)
        draw_failures(left, k * 0.94, results.norms["gaussian"][i], fmt="o", color=colour)
        draw_failures(left, k * 1.06, results.norms["signs"][i], fmt="s", mfc="none", color=colour)
        falls = results.grid[max(0, (results.norms_bound[i] == 1).sum() - 1)]  # where the bound says something at last
        labels.at(left, falls, 1.1, f"{eps:g}", colour)

        middle.plot(results.grid, results.pairs_bound[i], "--", color=colour)
        draw_failures(middle, k, results.pairs[i], fmt="o", color=colour)
        rates = np.array([each.measured for each in results.pairs[i]])
        below = int(np.argmax(rates < 0.9))
        labels.at(middle, k[below], rates[below], f"{eps:g}", colour, va="top", xytext=(0, -8))

    lines = zip(results.cosines, results.inner_by_norms, results.inner_as_printed, strict=True)
    for (cosine, by_norms, as_printed), shade in zip(lines, style.sequence(len(results.cosines)), strict=True):
        right.plot(results.grid, by_norms, "-", color=shade)
        line = right.plot(results.grid, as_printed, ":", color=shade)
        if as_printed[-1] > right.get_ylim()[0]:
            labels.at_ends(right, line, [f"cosine\n{cosine:g}"])
        elif not np.array_equal(by_norms, as_printed):
            low = int(np.argmin(np.maximum(as_printed, 8 * floor)))
            place = {"ha": "left", "va": "center", "xytext": (6, 0)}
            labels.at(right, results.grid[low], as_printed[low], f"cosine\n{cosine:g}", shade, **place)
    right.plot(results.grid, results.inner_bound, "--", color=style.BLACK)
    labels.at(right, results.grid[0], 3e-3, "solid: to\n|x| |y|", style.GREY, ha="left")
    labels.at(right, results.grid[-1], 1.4, "dotted: to |x·y|", style.GREY, ha="right")

    left.set_ylabel("probability to be off by eps")
    for look, name in (("o", "normal"), ("s", "signs"), ("-", "exact"), ("--", "bound")):
        left.plot([], [], look, color=style.GREY, mfc="none" if look == "s" else None, label=name)
    figure.legend(loc="outside lower left", ncols=4)
    return figure


def draw_failures(axis: Any, x: Any, counted: Sequence[Any], **look: Any) -> None:
    """What was measured, failure rates or others, with their intervals; where nothing failed, nothing is drawn."""
    rate, low, high = np.array([(each.measured or np.nan, each.low, each.high) for each in counted]).T
    axis.errorbar(x, rate, (rate - low, high - rate), **{"elinewidth": 0.8, "zorder": 3} | look)
