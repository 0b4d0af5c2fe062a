"""What a sequence costs a whole encoder, forward and backward, with each mechanism in its layers.

The network has the size of the one that is fine-tuned, 6 layers of 384 and 12 heads of 32, its weights are drawn: what
a product costs does not depend on its numbers. So it can read longer texts than the pretrained one has places for.
CPU time on one thread, all mechanisms in turn in one process that keeps freed memory.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.experiments.learning import encoder_attention
from linattn_ref.experiments.learning.encoder_attention import TITLES
from linattn_ref.experiments.measuring.points import Group, check_lengths, measure_points
from linattn_ref.experiments.publishing.kit import Figure, Results, style
from linattn_ref.kernels import jit
from linattn_ref.models import encoder
from linattn_ref.nn import post_norm
from linattn_ref.training import parameters

__all__ = ["POINTS", "Point", "compute", "draw"]

LAYERS, WIDTH, HEADS, HIDDEN, TOKENS = 6, 384, 12, 1536, 100


class Point(NamedTuple):
    """Where it is measured."""

    length: int
    k: int  # keys, mixtures, landmarks or features per query
    sequences: int  # in a batch


POINTS = (Point(128, 32, 8), Point(2048, 128, 1))


def compute(
    *, points: Sequence[Point] = POINTS, rounds: int = 2, seed: int = 0, quick: bool = False, **where: Any
) -> Results:
    """Time both passes with every mechanism; two minutes of one core.

    Parameters
    ----------
    points : sequence of Point
    rounds : int
        Of timing, after one that is not counted.
    seed : int
    quick : bool
        One short length and one round: for tests.
    **where
        ``parts``, ``resume`` and ``progress``, as in `measure_all`.

    Raises
    ------
    ValueError
        A number of rounds below 1, or ``resume`` with other settings than those of ``parts``.
    """
    if quick:
        points, rounds = (Point(32, 8, 1),), 1
    check_lengths([point.length for point in points], rounds)
    settings = {"points": [tuple(point) for point in points], "rounds": rounds, "seed": seed}
    groups = {str(p.length): Group([*TITLES], p.length, rounds, (p, seed), memory=False) for p in points}
    found = measure_points(both_passes, groups, settings, warm_up=0, **where).seconds
    # The least of the rounds: what a machine that does something else at times adds is never less than nothing.
    least = [{name: seconds.min() for name, seconds in of.items()} for of in found.values()]  # of each point
    pairs = list(zip(least, points, strict=True))
    return Results(
        rounds=rounds,
        points=tuple(points),
        seconds={name: tuple(float(x[name] / point.sequences) for x, point in pairs) for name in TITLES},  # a sequence
        ratio={name: tuple(float(x[name] / x["softmax"]) for x in least) for name in TITLES},
    )


def both_passes(name: str, length: int, point: Point, seed: int) -> Callable[[], None]:
    """Forward and backward, ready to be called."""
    rng = np.random.default_rng(seed)
    setting = encoder_attention.Setting(LAYERS, HEADS, WIDTH // HEADS, length, point.k, pooled=True)
    inside = encoder_attention.make(name, setting, rng)
    sizes = {"tokens": TOKENS, "places": length, "width": WIDTH, "hidden": HIDDEN, "layers": LAYERS}
    _, params = parameters.flatten(encoder.draw(rng, **sizes, reads=inside.reads, own=inside.own, dtype=np.float32))
    model = encoder.Model(inside.mechanisms, HEADS, post_norm, kernels=jit)
    tokens = rng.integers(TOKENS, size=(point.sequences, length))
    d_rows = rng.standard_normal((*tokens.shape, WIDTH)).astype(np.float32)

    def call() -> None:
        _, saved = encoder.forward(tokens, params, model)
        encoder.backward(d_rows, saved)

    return call


def draw(results: Results) -> Figure:
    """Both passes of a whole encoder, 6 layers of 384 with 12 heads, with each mechanism in place of softmax
    attention. CPU time per sequence on one thread is divided by that with softmax attention, which keeps no matrix
    here; it is the least of the rounds. Below 1 is faster. Left: a quarter of the length is the price, as in the
    fine-tuned networks. Right: 2,048 tokens, a sixteenth. All that is not attention costs the same in each.
    """
    figure, axes = style.figure(1, len(results.points), height=0.55, sharey=True, squeeze=False)
    names = sorted(TITLES, key=lambda name: results.ratio[name][-1], reverse=True)
    for i, (axis, point) in enumerate(zip(axes[0], results.points, strict=True)):
        colours = [style.GREY if name == "softmax" else style.BLUE for name in names]
        bars = axis.barh([TITLES[name] for name in names], [results.ratio[name][i] for name in names], color=colours)
        axis.bar_label(bars, fmt="%.2f", padding=2)
        axis.margins(x=0.15)
        axis.set(title=f"{point.length:,} tokens, k = {point.k}", xlabel="time of both passes over softmax's")
        axis.grid(axis="y", visible=False)
    return figure
