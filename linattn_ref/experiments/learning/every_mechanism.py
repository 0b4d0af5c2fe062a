"""One pretrained network, every mechanism put in: what it still knows, and what a little training brings back.

``linattn-ref train finetune`` was run once for each mechanism, from one and the same network that had learned the task
with softmax attention; ``linattn-ref gather`` made the record. Linformer begins as mean pooling.
"""

from pathlib import Path

from linattn_ref.experiments.learning import finetune_result, runs
from linattn_ref.experiments.learning.encoder_attention import TITLES
from linattn_ref.experiments.publishing.kit import Figure, Line2D, Results, style

__all__ = ["TITLES", "compute", "draw", "ordered", "table_rows"]


def compute(*, record: Path = runs.RECORDS / "finetune.json") -> Results:
    """The committed runs, or those in another file of `runs.gather`; of each source those of every mechanism."""
    return Results({key: x for key, x in finetune_result.read(record).items() if len(ordered(x)) >= 3})


def ordered(source: Results) -> dict[str, Results]:
    """A run for each mechanism, at one price, best after training first."""
    found = {one.attention: one for name, one in source.networks.items() if name in TITLES}
    return dict(sorted(found.items(), key=lambda item: (-item[1].after.accuracy, -_before(item[1]))))


def _before(one: Results) -> float:
    return one.before.accuracy if one.before else 0.0


def table_rows(source: Results) -> list[tuple[str, str, str, str]]:
    """Of each mechanism: what stands in the figure, and CPU seconds of an update."""
    return [
        (TITLES[name], finetune_result.told(one.before), finetune_result.told(one.after), f"{one.step_seconds:.2f}")
        for name, one in ordered(source).items()
    ]


def draw(results: Results) -> Figure:
    """One pretrained network (all-MiniLM-L6-v2, 6 layers of 384), fine-tuned with softmax attention to tell praise
    from blame; then softmax attention is replaced in all layers. Grey: test accuracy at once, before anything is
    learned with the new mechanism. Blue: after a few updates of all weights, the same number and rate for each.
    Bars are 95 % intervals; all read the same test texts. The dashed line is guessing. A quarter of the length is
    the price: keys, mixtures, landmarks or features per query. One run each.
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
