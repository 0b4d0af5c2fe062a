"""Linformer's Theorem 2 measured: the error of its proof's ``E = delta R``, ``F = exp(-delta) R``, against ``k``."""

from typing import Any

import numpy as np

from linattn_ref.experiments.publishing.kit import Axes, Figure, Results, labels, style
from linattn_ref.theory import linear_self_attention as theory
from linattn_ref.theory.johnson_lindenstrauss import count_failures

__all__ = ["compute", "draw"]

MEANS = (1.0, 0.0)
WIDTH, EPS = 32, 0.4  # d of queries, keys and values; the theorem's, for the stated k and the failure rates
DIMENSIONS = (16, 32, 64, 128, 256, 512)  # k, up to the length; the stated one is added


QUICK = {"length": 128, "trials": 4}


def compute(*, seed: int = 0, length: int = 512, trials: int = 40) -> Results:
    """Measure the construction for several ``delta``, the paper's ``1/2^n`` first.

    Parameters
    ----------
    seed : int
    length : int
        ``n`` of queries, keys and values, all normal.
    trials : int
        Draws of ``R`` at every ``k`` and ``delta``.
    """
    stated = theory.stated_dimension(length, WIDTH, EPS)
    dimensions = sorted({k for k in (*DIMENSIONS, stated) if k <= length})
    deltas = (2.0**-length, 1 / length, 1.0)
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((2, length, WIDTH), np.float32)
    noise = rng.standard_normal((length, WIDTH), np.float32)
    measured = {
        (mean, delta, reduced): theory.attention_errors(
            q, k, np.float32(mean) + noise, reduced, delta, trials=trials, rng=rng
        )
        for reduced in dimensions
        for delta in deltas
        for mean in MEANS
    }
    exponents = tuple(range(64))

    def curves(mean: float) -> Results:
        """Root mean squares over rows and trials, in units of ``|softmax(w)| |V|``, for values of one mean."""
        first = [measured[mean, deltas[0], k] for k in dimensions]
        at_stated = measured[mean, deltas[0], min(stated, dimensions[-1])]
        linformer = [[rms(measured[mean, delta, k].linformer) for k in dimensions] for delta in deltas]
        events = ("linformer", "unnormalised", "low_rank")
        return Results(
            value_mean=mean,
            linformer=np.array(linformer),  # (deltas, K)
            limit=np.array([rms(each.limit) for each in first]),  # (K,), what it should be as delta -> 0
            low_rank=np.array([rms(each.low_rank) for each in first]),  # (K,), Theorem 1's P R^T R V
            zero=rms(first[0].zero),
            uniform=rms(first[0].uniform),
            stated_dimension=stated,
            failures={  # of the first row to be within eps, at the stated k
                name: count_failures(getattr(at_stated, name)[:, 0], EPS, 0.0) for name in events
            },
        )

    def dependence(dtype: Any) -> list[float]:
        given = q.astype(dtype), k.astype(dtype), dimensions[0]
        return [theory.query_dependence(*given, 2.0**-m, rng=np.random.default_rng(seed)) for m in exponents]

    return Results(
        length=length,
        width=WIDTH,
        eps=EPS,
        deltas=deltas,
        dimensions=tuple(dimensions),
        curves=[curves(mean) for mean in MEANS],  # in the order of MEANS
        exponents=exponents,  # delta = 2^-exponent in the right panel
        dependence={np.dtype(x).name: dependence(x) for x in (np.float32, np.float64)},  # largest |k weight - 1|
    )


def rms(errors: Any) -> float:
    """The root of the mean square."""
    return float(np.sqrt(np.mean(np.square(errors, dtype=np.float64))))


def draw(results: Results) -> Figure:
    """Linformer's Theorem 2, with the E and F of its proof. Left and middle: root mean square error in the
    theorem's own unit |softmax(w)| |V|, for values of mean 1 and of mean 0. With growing k the error of
    Theorem 2 (points; line: the limit for small delta) tends to that of answering 0, whatever delta is; the projection
    of Theorem 1, which needs the matrix P, goes on falling. Dash-dotted: the error and the k that the theorem states.
    Right: how far the weights are from 1/k. They are exactly 1/k, the same for every query, long before delta is the
    paper's 2^-n.
    """
    figure, axes = style.figure(1, 3, height=0.5, width_ratios=(1, 1, 1.2))
    axes[1].sharey(axes[0])
    for axis, curves in zip(axes, results.curves, strict=False):
        axis.set(title=f"Values of mean {curves.value_mean:g}", xlabel="reduced length $k$", xscale="log", yscale="log")
        axis.set_ylim(0.02, 1.6)
        _draw_errors(axis, results, curves)
    axes[0].set_ylabel("relative error")

    deltas = 0.5 ** np.array(results.exponents)
    looks = (style.SKY, 6), (style.BROWN, 1.5)  # the lines lie one on the other as far as the first goes
    for (name, values), (colour, width) in zip(results.dependence.items(), looks, strict=True):
        axes[2].plot(deltas, [value or np.nan for value in values], "-", color=colour, lw=width)
        place = int(np.argmin(values))  # the first that is 0
        look: Any = {"ha": "left", "va": "center", "xytext": (14, 0)}
        labels.at(axes[2], deltas[place], values[place - 1], f"{name}:\nthen 0", colour, **look)
    axes[2].set(title="Weights, off 1/$k$ by", xlabel="δ", xscale="log", yscale="log")

    return figure


def _draw_errors(axis: Axes, results: Results, curves: Results) -> None:
    smallest, *_, largest = curves.linformer  # by delta; those between lie on the smallest's
    axis.plot(results.dimensions, smallest, "o", color=style.VERMILLION)
    lines = {
        "Theorem 2": axis.plot(results.dimensions, curves.limit, "-", color=style.VERMILLION)[0],
        "Theorem 2,\nδ = 1": axis.plot(results.dimensions, largest, "^:", color=style.PURPLE)[0],
        "Theorem 1": axis.plot(results.dimensions, curves.low_rank, "s-", color=style.BLUE)[0],
        "answering 0": axis.axhline(curves.zero, color=style.BLACK, ls="--"),
        "mean of\nall values": axis.axhline(curves.uniform, color=style.GREY, ls=":"),
        "promised": axis.axhline(results.eps, color=style.GREEN, ls="-."),
    }
    axis.axvline(curves.stated_dimension, color=style.GREEN, lw=1, ls="-.")
    labels.ticks(axis, [k for k in results.dimensions if k != curves.stated_dimension][::2])
    labels.at_ends(axis, [*lines.values()], [*lines])
