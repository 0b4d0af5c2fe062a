"""How a transformer learns to copy, by its attention: the loss against updates, and against CPU time.

``linattn-ref train duplication`` was run once for each mechanism and seed, with the usual network, with more and
narrower heads, and for longer words; ``linattn-ref gather`` made the record, and its runs say what they are.

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", section 4.1.1, Figure 2.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from linattn_ref.experiments.learned import seeds
from linattn_ref.experiments.learning import runs
from linattn_ref.experiments.learning.causal_attention import NAMES
from linattn_ref.experiments.learning.duplication import Shape
from linattn_ref.experiments.publishing.kit import Array, Axes, Figure, Line2D, labels, style
from linattn_ref.experiments.publishing.kit import Results as Stored

__all__ = ["LOOK", "Curve", "Results", "compute", "draw"]

SHAPE = Shape()
LONGER = Shape(length=128)  # the paper's, of which the words have up to 62 symbols
EARLY = 3000  # updates, after which the authors' code divides the rate by ten
M = style.MECHANISMS
LOOK = {name: (M.get(name, M["reformer"]), "-") for name in NAMES} | {"lsh-1": (M["reformer"], ":")}  # colour, line


class Curve(Stored):
    """The runs of one kind, as `seeds.put_together` has them; all evaluated after the same steps.

    The loss is in nats per symbol, of the sequences read since the last evaluation, each for the first time; accuracy
    is the share of the symbols that are told, of sequences that are the same each time.
    """

    def at_the_end(self) -> Array:
        """The loss over the last tenth of the updates, ``(S,)``."""
        return self.loss[:, self.steps > 0.9 * self.steps[-1]].mean(axis=1)


class Results(Stored):
    """All runs."""

    mechanisms: dict[str, Curve]  # by attention, in the network SHAPE
    widths: dict[str, Curve]  # linear attention, by the width of a head
    longer: dict[str, Curve]  # by attention, for the words of LONGER
    early: dict[str, Curve]  # by attention, in the network SHAPE, with the rate divided after 3000 updates as in print


def compute(*, record: Path = runs.RECORDS / "duplication.json") -> Results:
    """The curves of the committed runs, or those in another file of `runs.gather`."""
    curves = {}
    for name, of_one_kind in seeds.kinds(runs.gathered(record)).items():
        facts = of_one_kind[0].facts
        told = facts["attention"], Shape(**facts["shape"]), facts.get("reduce_after")
        if told in curves:
            raise ValueError(f"record: {name} has the attention and the network of another kind")
        # no sequence is read twice, so the loss of training is one on new words
        loss, fields = seeds.stacked(of_one_kind, "training_loss"), "seeds steps cpu_seconds loss accuracy processor"
        curves[told] = Curve(seeds.put_together(fields, of_one_kind, loss=loss))

    def by_attention(shape: Shape, reduce_after: int | None = None) -> dict[str, Curve]:
        asked = {name: (name, shape, reduce_after) for name in NAMES}
        return {name: curves[told] for name, told in asked.items() if told in curves}

    late = [shape for name, shape, after in curves if name == "linear" and after is None]
    narrower = sorted(shape for shape in late if shape._replace(heads=SHAPE.heads) == SHAPE)
    widths = {str(shape.width // shape.heads): curves["linear", shape, None] for shape in narrower}
    longer, early = by_attention(LONGER), by_attention(SHAPE, EARLY)
    return Results(mechanisms=by_attention(SHAPE), widths=widths, longer=longer, early=early)


def draw(results: Results) -> Figure:
    """Learning to copy a word: cross-entropy of the second copy. No sequence is read twice, so the loss of training
    is one on new words, with new hashes and features; a point is the mean over the updates since the last. Two layers
    of width 64, two heads, 32 sequences per update. Above: words of 17 to 32 symbols, against updates, and against the
    CPU time of one thread, for those that were timed on the processor of softmax attention. A line is the median over
    three seeds; its band goes from the least to the greatest. Below, one seed each but for D = 32: linear attention
    with more heads, which are narrower; and words of 32 to 62 symbols, whose times include up to 16 s of compiling.
    The rate falls to a tenth after eight tenths of a run: that is the last drop.
    """
    figure, ((updates, time), (heads, longer)) = style.figure(2, 2, height=0.8, sharey=True)
    updates.set(yscale="log", title=f"Words of up to {SHAPE.length // 2 - 2}, by updates", xlabel="updates")
    time.set(title="By time", xlabel="CPU time (s)")
    heads.set(title="Linear, narrower heads", xlabel="updates")
    longer.set(title=f"Words of up to {LONGER.length // 2 - 2}, by time", xlabel="CPU time (s)")
    of_width = {f"D = {width}": curve for width, curve in results.widths.items()}
    shades = {name: (shade, "-") for name, shade in zip(of_width, style.sequence(len(of_width)), strict=True)}
    named = {
        updates: _draw_panel(updates, results.mechanisms, LOOK),
        time: _draw_panel(time, _alike(results.mechanisms), LOOK, by_time=True),
        heads: _draw_panel(heads, of_width, shades),
        longer: _draw_panel(longer, _alike(results.longer), LOOK, by_time=True),
    }
    for axes, lines in named.items():  # now that all limits are known
        labels.at_ends(axes, list(lines.values()), list(lines), rows=2)
    labels.at(updates, updates.get_xlim()[1], np.log(10), "guessing", style.GREY, ha="right")
    for left in (updates, heads):
        left.set_ylabel("loss (nats per symbol)")
    return figure


def _alike(curves: Mapping[str, Curve]) -> dict[str, Curve]:
    """Those that were timed on the processor of the first of them, softmax attention."""
    first = next(iter(curves.values())).processor if curves else ""
    return {name: curve for name, curve in curves.items() if curve.processor == first}


def _draw_panel(axes: Axes, curves: Mapping[str, Curve], look: Any, *, by_time: bool = False) -> dict[str, Line2D]:
    """A line for each, and what guessing costs."""
    axes.axhline(np.log(10), color=style.GREY, linewidth=0.6, linestyle="--")
    return {
        name: seeds.draw(axes, np.median(c.cpu_seconds, axis=0) if by_time else c.steps, c.loss, *look[name])
        for name, c in curves.items()
    }
