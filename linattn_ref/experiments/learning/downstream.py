"""Linformer put into a pretrained network, and fine-tuned: the paper's Table 2, on what can be had here.

Rows as in the paper, by ``k`` and by what is shared; its networks were *pretrained* with Linformer, this one was not.
So its ``E`` and ``F`` begin as mean pooling, or fitted to the network's own attention (`finetune_fit`).

References
----------
Wang et al. (2020), "Linformer: self-attention with linear complexity", section 5.2, Table 2.
"""

from pathlib import Path

from linattn_ref.experiments.learning import finetune_result, runs
from linattn_ref.experiments.publishing.kit import Figure, Results, style

__all__ = ["compute", "draw", "rows_of", "table_rows"]


def compute(*, record: Path = runs.RECORDS / "finetune.json") -> Results:
    """The committed runs, or those in another file of `runs.gather`."""
    return finetune_result.read(record)


def rows_of(source: Results) -> dict[str, Results]:
    """Softmax attention and every Linformer, by what is told of them."""
    found = [one for one in source.networks.values() if one.attention in ("softmax", "linformer")]
    found.sort(key=lambda one: (-(one.k or source.length), one.fitted, one.sharing or ""))
    return {_title(one): one for one in found}


def _title(one: Results) -> str:
    if one.attention == "softmax":
        return "softmax"
    shared = ", all layers share" if one.sharing == "layerwise" else ""
    return f"k = {one.k}, {'fitted' if one.fitted else 'pooled'}{shared}"


def table_rows(source: Results) -> list[tuple[str, str, str, str]]:
    """Of each: accuracy before and after; the error of a head's output, for those that were fitted."""
    return [
        (
            title,
            finetune_result.told(one.before),
            finetune_result.told(one.after),
            "–" if one.fitted_error is None else f"{one.pooled_error:.2f} to {one.fitted_error:.2f}",
        )
        for title, one in rows_of(source).items()
    ]


def draw(results: Results) -> Figure:
    """Linformer in all layers of a pretrained network (all-MiniLM-L6-v2) that was fine-tuned with softmax attention.
    Test accuracy is shown before (grey) and after (blue) a few more updates of all weights, the same number and rate
    for each; bars are 95 % intervals. E and F begin as mean pooling, or fitted to what the network's own heads
    compute. One pair of matrices a layer, unless one matrix is shared by all layers. One run each.
    """
    counts = [len(rows_of(source)) for source in results.values()]
    options = {"squeeze": False, "sharex": True, "height_ratios": counts}
    figure, axes = style.figure(len(results), 1, height=0.14 + 0.036 * sum(counts), **options)
    for axis, source in zip(axes[:, 0], results.values(), strict=True):
        finetune_result.draw_rows(axis, source, rows_of(source))
    axes[-1, 0].set_xlabel("right, % of the test texts")
    return figure
