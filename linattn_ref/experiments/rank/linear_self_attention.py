"""Linformer's Theorem 2 measured: the error of its proof's ``E = delta R``, ``F = exp(-delta) R``, against ``k``."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from linattn_ref.experiments.publishing import style
from linattn_ref.experiments.rank.johnson_lindenstrauss import COLOURS
from linattn_ref.theory import linear_self_attention
from linattn_ref.theory.johnson_lindenstrauss import Failure, count_failures

MEANS = (1.0, 0.0)
CAPTION = (
    "Linformer's Theorem 2, with the E and F of its proof. Left and middle: root mean square error in the theorem's "
    "own unit |softmax(w)| |V|, for values of mean 1 and of mean 0. With growing k it tends to the error of answering "
    "0, whatever delta is; the projection of Theorem 1, which needs the matrix P, goes on falling. Right: how far the "
    "weights are from 1/k. They are exactly 1/k, the same for every query, long before delta is the paper's 1/2^n."
)


class Curves(NamedTuple):
    """Errors for values of one mean: root mean square over rows and trials, in units of ``|softmax(w)| |V|``."""

    value_mean: float
    linformer: NDArray[np.float64]  # (deltas, K)
    limit: NDArray[np.float64]  # (K,), what it should be as delta -> 0
    low_rank: NDArray[np.float64]  # (K,), Theorem 1's P R^T R V
    zero: float
    uniform: float
    stated_dimension: int
    failures: dict[str, Failure]  # of the first row to be within eps, at the stated k, by field of Errors


class Results(NamedTuple):
    length: int
    width: int
    eps: float
    deltas: tuple[float, ...]
    dimensions: tuple[int, ...]
    curves: list[Curves]  # in the order of MEANS
    exponents: tuple[int, ...]  # delta = 2^-exponent in the right panel
    dependence: dict[str, list[float]]  # dtype -> largest |k weight - 1|, an entry an exponent


def compute(
    *,
    seed: int = 0,
    quick: bool = False,
    length: int = 512,
    width: int = 32,
    eps: float = 0.4,
    dimensions: Sequence[int] = (16, 32, 64, 128, 256, 512),
    trials: int = 40,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Results:
    """Measure the construction for several ``delta``, the paper's ``1/2^n`` first.

    Parameters
    ----------
    seed : int
    quick : bool
        A short sequence and few trials: for tests.
    length, width : int
        ``n``, and ``d`` of queries, keys and values, all normal.
    eps : float
        The theorem's, for the stated ``k`` and the failure rates.
    dimensions : sequence of int
        ``k``, at most ``length``; the stated one is added where it is.
    trials : int
        Draws of ``R`` at every ``k`` and ``delta``.
    progress : callable
        Wraps the sequence of dimensions, as ``tqdm.tqdm`` does.
    """
    if quick:
        length, trials = min(length, 128), min(trials, 4)
    stated = linear_self_attention.stated_dimension(length, width, eps)
    dimensions = sorted({k for k in (*dimensions, stated) if k <= length})
    deltas = (2.0**-length, 1 / length, 1.0)
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((2, length, width), np.float32)
    noise = rng.standard_normal((length, width), np.float32)
    measured = {
        (mean, delta, reduced): linear_self_attention.attention_errors(
            q, k, np.float32(mean) + noise, reduced, delta, trials=trials, rng=rng
        )
        for reduced in progress(dimensions)
        for delta in deltas
        for mean in MEANS
    }
    exponents = tuple(range(64))
    return Results(
        length,
        width,
        eps,
        deltas,
        tuple(dimensions),
        [_curves(measured, mean, deltas, dimensions, stated, eps) for mean in MEANS],
        exponents,
        {
            np.dtype(dtype).name: [
                linear_self_attention.query_dependence(
                    q.astype(dtype), k.astype(dtype), dimensions[0], 2.0**-exponent, rng=np.random.default_rng(seed)
                )
                for exponent in exponents
            ]
            for dtype in (np.float32, np.float64)
        },
    )


def _curves(
    measured: dict[Any, linear_self_attention.Errors],
    mean: float,
    deltas: Sequence[float],
    dimensions: Sequence[int],
    stated: int,
    eps: float,
) -> Curves:
    def rms(errors: Any) -> float:
        return float(np.sqrt(np.mean(np.square(errors, dtype=np.float64))))

    first = [measured[mean, deltas[0], k] for k in dimensions]
    at_stated = measured[mean, deltas[0], min((k for k in dimensions if k >= stated), default=dimensions[-1])]
    return Curves(
        mean,
        np.array([[rms(measured[mean, delta, k].linformer) for k in dimensions] for delta in deltas]),
        np.array([rms(each.limit) for each in first]),
        np.array([rms(each.low_rank) for each in first]),
        rms(first[0].zero),
        rms(first[0].uniform),
        stated,
        {
            name: count_failures(getattr(at_stated, name)[:, 0], eps, 0.0)
            for name in ("linformer", "unnormalised", "low_rank")
        },
    )


def draw(results: Results) -> Figure:
    """Error over ``k`` for values of mean 1 and 0, and how the weights lose the query as ``delta`` shrinks."""
    figure, (left, middle, right) = style.figure(1, 3, height=0.54)
    middle.sharey(left)
    names = (f"δ = 1/2^{results.length}", f"δ = 1/{results.length}", "δ = 1")
    looks = ((style.VERMILLION, "o"), (style.ORANGE, "s"), (style.PURPLE, "^"))
    for axis, curves in zip((left, middle), results.curves, strict=True):
        for row, name, (colour, marker) in zip(curves.linformer, names, looks, strict=True):
            axis.plot(results.dimensions, row, marker, mfc="none", color=colour, label=name)
        axis.plot(results.dimensions, curves.limit, "-", color=style.VERMILLION, label="limit δ → 0")
        axis.plot(results.dimensions, curves.low_rank, "s-", color=style.BLUE, ms=3, label="Theorem 1")
        axis.axhline(curves.zero, color=style.BLACK, ls="--", label="answer 0")
        axis.axhline(curves.uniform, color=style.GREY, ls=":", label="answer mean(V)")
        axis.axhline(results.eps, color=style.GREEN, ls="-.", label=f"eps = {results.eps:g}")
        axis.axvline(curves.stated_dimension, color=style.GREEN, lw=0.8, ls="-.")
        axis.set(title=f"values of mean {curves.value_mean:g}", xlabel="k", xscale="log", yscale="log")
        ticks = [k for k in results.dimensions if k != curves.stated_dimension]
        axis.set_xticks(ticks[::2], [str(k) for k in ticks[::2]])
        axis.minorticks_off()
    left.set_ylabel("error / (|softmax(w)| |V|)")
    for (name, values), colour in zip(results.dependence.items(), COLOURS, strict=False):
        right.plot(results.exponents, [value or np.nan for value in values], "-", color=colour, label=name)
        gone = [exponent for exponent, value in zip(results.exponents, values, strict=True) if value == 0]
        right.axvline(min(gone), color=colour, ls="--", label=f"0 from m = {min(gone)}")
    right.set(title="largest |k weight - 1|", xlabel="m, for δ = 1/2^m", yscale="log")
    construction = 4  # entries of the legend: it goes on under the middle panel
    handles, labels = left.get_legend_handles_labels()
    style.legend_below(left, handles=handles[:construction], labels=labels[:construction], columns=1)
    style.legend_below(middle, handles=handles[construction:], labels=labels[construction:], columns=1)
    style.legend_below(right, columns=1)
    return figure
