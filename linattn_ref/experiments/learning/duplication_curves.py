"""How a transformer learns to copy, by its attention: the loss against updates, and against CPU time.

``linattn-ref train duplication`` was run once for each mechanism and seed; ``linattn-ref gather`` made the record. A
run of the name ``linear-0`` is one of linear attention with seed 0, and ``heads4-0`` one of linear attention with four
heads instead of two, which are then half as wide; if there are such, a third panel shows them beside ``linear``.

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", section 4.1.1, Figure 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from linattn_ref.attention.arguments import Array
from linattn_ref.experiments.learning import runs
from linattn_ref.experiments.learning.causal_attention import NAMES
from linattn_ref.experiments.publishing import labels, style
from linattn_ref.experiments.publishing.restore import restore

__all__ = ["LOOK", "Curve", "Results", "compute", "draw", "from_record"]

M = style.MECHANISMS
LOOK = {  # colour, line
    "softmax": (M["softmax"], "-"),
    "linear": (M["linear"], "-"),
    "lsh-1": (M["reformer"], ":"),
    "lsh-4": (M["reformer"], "-"),
    "performer": (M["performer"], "-"),
    "local": (M["local"], "-"),
}
CAPTION = (
    "Learning to copy a word of 17 to 32 symbols: cross-entropy of the second copy, of 512 sequences that are not "
    "trained on. Two layers of width 64, two heads, 32 sequences an update. A line is the median over "
    "three seeds, its band goes from the least to the greatest. Left: against updates. Middle: against the CPU time of "
    "one thread. Right: linear attention with more heads, which are narrower, one seed each. The rate falls to a tenth "
    "after eight tenths of a run: that is the last drop."
)


class Curve(NamedTuple):
    """The runs of one kind; all evaluated after the same steps."""

    seeds: tuple[int, ...]  # (S,)
    steps: Array  # (T,)
    cpu_seconds: Array  # (S, T)
    loss: Array  # (S, T), nats a symbol
    accuracy: Array  # (S, T), share of the symbols that are told


class Results(NamedTuple):
    """All runs."""

    width: int  # E
    mechanisms: dict[str, Curve]
    widths: dict[str, Curve]  # linear attention, by the width of a head


def compute(*, record: Path = runs.RECORDS / "duplication.json") -> Results:
    """The curves of the committed runs, or those in another file of `runs.gather`."""
    found = runs.gathered(record)
    kinds: dict[str, dict[str, runs.Run]] = {}
    for name, run in found.items():
        kinds.setdefault(name.rpartition("-")[0], {})[name] = run
    mechanisms = {kind: _curve(kinds[kind]) for kind in NAMES if kind in kinds}
    width = next(iter(found.values())).facts["shape"]["width"]
    heads = {kind: next(iter(of.values())).facts["shape"]["heads"] for kind, of in kinds.items()}
    narrower = sorted((kind for kind in kinds if kind.startswith("heads")), key=heads.__getitem__)
    widths = {str(width // heads[kind]): _curve(kinds[kind]) for kind in ["linear", *narrower] if narrower}
    return Results(width, mechanisms, widths)


def _curve(of_one_kind: Mapping[str, runs.Run]) -> Curve:
    found = list(of_one_kind.values())
    for name, run in of_one_kind.items():
        if not np.array_equal(run.steps, found[0].steps):
            raise ValueError(f"record: {name} was not evaluated after the steps of the others of its kind")
    return Curve(
        tuple(run.facts["seed"] for run in found),
        found[0].steps,
        np.array([run.cpu_seconds for run in found]),
        np.array([run.curves["loss"] for run in found]),
        np.array([run.curves["accuracy"] for run in found]),
    )


def from_record(record: Mapping[str, Any]) -> Results:
    """The results in the figure's ``.json``, as they were."""
    return restore(Results, record["results"])


def draw(results: Results) -> Figure:
    """Loss against updates, against CPU time, and for heads of other widths."""
    figure, axes = style.figure(1, 2 + bool(results.widths), height=0.42, sharey=True)
    left, middle, lines = axes[0], axes[1], []
    for name, curve in results.mechanisms.items():
        _draw_curve(left, curve.steps, curve, *LOOK[name])
        lines.append(_draw_curve(middle, np.median(curve.cpu_seconds, axis=0), curve, *LOOK[name]))
    left.set(yscale="log", xlabel="updates", ylabel="loss (nats a symbol)")
    middle.set(xlabel="CPU time (s)")
    for panel in (left, middle):
        panel.axhline(np.log(10), color=style.GREY, linewidth=0.6, linestyle="--")
    labels.at(left, left.get_xlim()[1], np.log(10), "guessing", style.GREY, ha="right")
    labels.at_ends(middle, lines, list(results.mechanisms))
    for right in axes[2:]:
        shades = style.sequence(len(results.widths))
        narrower = zip(shades, results.widths.values(), strict=True)
        lines = [_draw_curve(right, curve.steps, curve, shade, "-") for shade, curve in narrower]
        right.set(xlabel="updates", title="linear, heads narrower")
        labels.at_ends(right, lines, [f"D = {width}" for width in results.widths])
    return figure


def _draw_curve(axes: Axes, x: Array, curve: Curve, colour: Any, line: str) -> Line2D:
    (median,) = axes.plot(x, np.median(curve.loss, axis=0), line, color=colour)
    axes.fill_between(x, curve.loss.min(axis=0), curve.loss.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    return median
