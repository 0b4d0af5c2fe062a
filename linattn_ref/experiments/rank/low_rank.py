"""Linformer's Theorem 1 measured: failure rate against ``k``, and the ``k`` that is needed against ``log(n)``."""

from functools import partial

import numpy as np

from linattn_ref.experiments.publishing.kit import Figure, Ints, Results, labels, style
from linattn_ref.experiments.rank.johnson_lindenstrauss import draw_failures
from linattn_ref.theory import dimension_growth, low_rank
from linattn_ref.theory.johnson_lindenstrauss import count_failures

__all__ = ["compute", "draw"]

EPSILONS = (0.3, 0.5, 0.7)  # of the left panel
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
DIMENSIONS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # k of it
GROWTH_EPS, FAILURE = 0.5, 0.1  # eps and target failure rate of the growth curves
# What the theorem's error is compared with (a field of `linattn_ref.theory.low_rank.Errors`), and the values' mean.
GROWTHS = {
    ("entry_by_norms", 1.0): "each entry",
    ("vector_by_norms", 1.0): "the whole vector",
    ("vector", 1.0): "values of\nmean 1",
    ("vector", 0.0): "values of\nmean 0",
}


QUICK = {"lengths": LENGTHS[:3], "length": 256, "trials": 100}


def compute(*, seed: int = 0, lengths: Ints = LENGTHS, length: int = 1024, trials: int = 400) -> Results:
    """Measure both parts. No ``n x n`` array is made, so a length of 8192 takes about a second.

    Parameters
    ----------
    seed : int
    lengths : sequence of int
        ``n`` of the growth curves.
    length : int
        ``n`` of the left panel.
    trials : int
        Draws of the projection at every length.
    """
    draw = partial(dimension_growth.random_action, trials=trials, rng=np.random.default_rng(seed))
    acted: dict[float, dict[int, low_rank.Action]] = {mean: {} for _, mean in GROWTHS}
    for n in lengths:
        for mean, by_length in acted.items():
            by_length[n] = draw(n, value_mean=mean)
    one = draw(length)
    errors = {k: low_rank.errors_at(one, k, "entry_by_norms") for k in DIMENSIONS}
    return Results(
        length=length,  # n of the left panel
        epsilons=EPSILONS,
        dimensions=DIMENSIONS,
        failures=[  # [eps][k], every entry within eps |p_i| |v|
            [count_failures(errors[k], eps, low_rank.stated_failure(length, eps, k)) for k in DIMENSIONS]
            for eps in EPSILONS
        ],
        stated_dimensions=tuple(low_rank.stated_dimension(length, eps) for eps in EPSILONS),  # at that n
        growth=[dimension_growth.growth(acted[mean], GROWTH_EPS, event, failure=FAILURE) for event, mean in GROWTHS],
        amplification={  # |P| |v| / |P v| by mean of the values, an entry per length
            f"{mean:g}": [low_rank.amplification(by_length[n]) for n in sorted(by_length)]
            for mean, by_length in acted.items()
        },
    )


def draw(results: Results) -> Figure:
    """Linformer's Theorem 1 for softmax attention of normal queries and keys. Left: how often some entry of P R'R v
    is off by more than ε |p_i| |v| (points, 95% intervals), and the proof's bound (dashed). Middle: the k that
    keeps this rate below the target grows with log n, less steeply than stated; relative to |P| |v| the whole
    vector needs a constant k. Right: the theorem as printed, relative to |P v|. For values of mean 0 it takes more
    than n.
    """
    figure, (left, middle, right) = style.figure(1, 3, height=0.5)
    for eps, failures, shade in zip(results.epsilons, results.failures, style.sequence(3), strict=False):
        rates = np.array([each.measured for each in failures])
        left.plot(results.dimensions, rates, "-", color=shade, alpha=0.5)
        left.plot(results.dimensions, [each.stated for each in failures], "--", color=shade)
        draw_failures(left, results.dimensions, failures, fmt="o", color=shade)
        half = int(np.argmin(abs(rates - 0.5)))
        labels.at(left, results.dimensions[half], rates[half], f"{eps:g}", shade, ha="left", xytext=(5, 2))
    labels.at(left, results.dimensions[-1], 1.02, "dashed: the bound", style.BLACK, ha="right", va="bottom")
    title = f"Off by ε = {', '.join(f'{eps:g}' for eps in results.epsilons)}"
    left.set(title=title, xlabel="$k$", ylabel="failure rate", xscale="log", ylim=(None, 1.1))
    labels.ticks(left, results.dimensions[::4])

    first = results.growth[0]
    half = len(first.lengths) // 2
    for axis in (middle, right):
        stated = [each.stated for each in first.needed]
        axis.plot(first.lengths, stated, "--", color=style.BLACK)
        labels.at(axis, first.lengths[half], stated[half], "stated", style.BLACK, ha="right", xytext=(-4, 2))
        axis.set(xlabel="length n", xscale="log")
        labels.ticks(axis, first.lengths[::2])
    colours = style.BLUE, style.VERMILLION, style.GREEN, style.BROWN
    for ((event, _), label), growth, colour in zip(GROWTHS.items(), results.growth, colours, strict=True):
        axis = right if event == "vector" else middle
        steep = {"ha": "right", "xytext": (-4, 4)} if growth.exponent > 0.5 else {"xytext": (0, 8)}
        draw_failures(axis, growth.lengths, growth.needed, fmt="o-", color=colour, zorder=2)
        labels.at(axis, growth.lengths[half], growth.needed[half].measured, label, colour, **steep)
    middle.set(title=f"$k$ needed, ε = {first.eps:g}", ylabel="$k$", ylim=(0, None))
    right.set(title="$k$ needed, as printed", yscale="log")
    low_end, high_end = right.get_ylim()
    right.fill_between(first.lengths, first.lengths, high_end, color=style.GREY, alpha=0.18, lw=0)
    right.set_ylim(low_end, high_end)
    labels.at(right, first.lengths[0], high_end, "k > n", style.GREY, ha="left", va="top", xytext=(4, -4))

    right.minorticks_off()
    return figure
