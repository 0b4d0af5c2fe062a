"""One pretrained network, every mechanism put in: what it still knows, and what a little training brings back.

``linattn-ref train finetune`` was run for each mechanism, from one and the same network that had learned the task with
softmax attention (``every_mechanism.toml`` is the plan); ``linattn-ref gather`` made the record. Each seed has such a
network of its own, and all test texts were read. Linformer begins as mean pooling.
"""

from pathlib import Path

import numpy as np

from linattn_ref.experiments.learned import finetune_result
from linattn_ref.experiments.learning import runs
from linattn_ref.experiments.learning.encoder_attention import TITLES
from linattn_ref.experiments.publishing.kit import Figure, Line2D, Results, style

__all__ = ["TITLES", "compute", "draw", "ordered", "table_rows"]


def compute(*, record: Path = runs.RECORDS / "every_mechanism.json") -> Results:
    """The committed runs, or those in another file of `runs.gather`."""
    return finetune_result.read(record)


def ordered(source: Results) -> dict[str, Results]:
    """A network for each mechanism, at one price, best after training first."""
    found = {one.attention: one for name, one in source.networks.items() if name in TITLES}
    return dict(sorted(found.items(), key=lambda item: (-item[1].after.accuracy, -_before(item[1]))))


def _before(one: Results) -> float:
    return one.before.accuracy if one.before else 0.0


def table_rows(source: Results) -> list[tuple[str, str, str, str, str]]:
    """Of each mechanism: the figure's numbers, points above softmax attention by seed, CPU seconds of an update."""
    rows, found = [], ordered(source)
    for name, one in found.items():
        above = np.subtract(one.after.by_seed, found["softmax"].after.by_seed)
        told = finetune_result.told(one.before), finetune_result.told(one.after)
        points = "" if name == "softmax" else ", ".join(f"{100 * x:+.1f}" for x in above)
        rows.append((TITLES[name], *told, points, f"{one.step_seconds:.2f}"))
    return rows


def draw(results: Results) -> Figure:
    """One pretrained network (all-MiniLM-L6-v2, 6 layers of 384), fine-tuned with softmax attention to tell praise
    from blame; then softmax attention is replaced in all layers. Grey: test accuracy at once, before anything is
    learned with the new mechanism. Blue: after a few updates of all weights, the same number and rate for each.
    Ticks are runs, each from a start of its own, and the dot is their mean; the bar is the 95 % interval of one run,
    by the choice of test texts alone, which are the same for all. The dashed line is guessing. A quarter of the length
    is the price: keys, mixtures, landmarks or features per query.
    """
    figure, axes = style.figure(1, len(results), height=0.62, squeeze=False)
    for axis, source in zip(axes[0], results.values(), strict=True):
        finetune_result.draw_rows(axis, source, {TITLES[name]: one for name, one in ordered(source).items()})
        axis.axvline(50, color=style.GREY, linestyle="--", linewidth=1)
        axis.set_xlabel("test texts classified correctly (%)")
    marks = [Line2D([], [], color=colour, marker="o") for colour in (style.GREY, style.BLUE)]
    guessing = Line2D([], [], color=style.GREY, linestyle="--", linewidth=1)
    said = ["right after the exchange", "after a few updates", "guessing"]
    figure.legend([*marks, guessing], said, loc="outside lower center", ncols=3)
    return figure
