"""Linformer put into a pretrained network, and fine-tuned: the paper's Table 2, on what can be had here.

Rows as in the paper, by ``k`` and by what is shared; its networks were *pretrained* with Linformer, this one was not.
So its ``E`` and ``F`` begin as mean pooling, or fitted to the network's own attention (`finetune_fit`).

References
----------
Wang et al. (2020), "Linformer: self-attention with linear complexity", section 5.2, Table 2.
"""

from pathlib import Path

import numpy as np

from linattn_ref.experiments.learned import finetune_result
from linattn_ref.experiments.learning import runs
from linattn_ref.experiments.publishing.kit import Figure, Results, labels, style

__all__ = ["compute", "draw", "rows_of", "table_rows"]


def compute(*, record: Path = runs.RECORDS / "finetune.json") -> Results:
    """The committed runs, or those in another file of `runs.gather`."""
    return finetune_result.read(record)


def rows_of(source: Results) -> dict[str, Results]:
    """Softmax attention and every Linformer, by what is told of them.

    Raises
    ------
    ValueError
        Softmax attention, which the others are compared with, was not run.
    """
    found = [one for one in source.networks.values() if one.attention in ("softmax", "linformer")]
    found.sort(key=lambda one: (-(one.k or source.length), one.fitted, one.sharing or ""))
    if not found or found[0].attention != "softmax":
        raise ValueError(f"record: {source.name}, {source.length} tokens, has no run with softmax attention")
    return {_title(one): one for one in found}


def _title(one: Results) -> str:
    if one.attention == "softmax":
        return "softmax"
    shared = ", all layers share" if one.sharing == "layerwise" else ""
    return f"k = {one.k}, {'fitted' if one.fitted else 'pooled'}{shared}"


def table_rows(source: Results) -> list[tuple[str, str, str, str]]:
    """Of each: accuracy before and after; the error of a head's output, for those that were fitted."""
    rows = []
    for title, one in rows_of(source).items():
        error = "–" if one.fitted_error is None else f"{one.pooled_error:.2f} to {one.fitted_error:.2f}"
        rows.append((title, finetune_result.told(one.before), finetune_result.told(one.after), error))
    return rows


def draw(results: Results) -> Figure:
    """Linformer in all layers of a pretrained network (all-MiniLM-L6-v2) that was fine-tuned with softmax attention:
    test accuracy by k, the number of mixtures, at once (dotted) and after a few more updates of all weights (solid),
    the same number and rate for each. E and F begin as mean pooling, or fitted to what the network's own heads
    compute; each layer has its own. Black: softmax attention after the same updates. Bars, and the grey band, are 95 %
    intervals. One run each.
    """
    figure, axes = style.figure(1, len(results), height=0.5, sharey=True, squeeze=False)
    for axis, source in zip(axes[0], results.values(), strict=True):
        softmax, *others = rows_of(source).values()
        axis.axhspan(100 * softmax.after.low, 100 * softmax.after.high, color=style.GREY, alpha=0.2, lw=0)
        axis.axhline(100 * softmax.after.accuracy, color=style.MECHANISMS["softmax"], label="softmax")
        for i, (fitted, when) in enumerate(((True, "after"), (False, "after"), (True, "before"), (False, "before"))):
            drawn = [one for one in others if one.fitted == fitted and one.sharing != "layerwise"]
            found = [(one[when].accuracy, one[when].low, one[when].high) for one in drawn]
            if not found:
                continue
            middle, low, high = 100 * np.array(found).T
            name = f"{'fitted' if fitted else 'pooled'}, {'trained' if when == 'after' else 'at once'}"
            look = {"color": style.BLUE if fitted else style.SKY, "elinewidth": 1, "label": name}
            x = np.array([one.k for one in drawn]) * 1.06 ** (i - 1.5)  # bars stand apart
            reach = (middle - low).tolist(), (high - middle).tolist()  # not arrays of one number, for matplotlib 3.9
            axis.errorbar(x, middle, reach, fmt="o-" if when == "after" else "o:", **look)
        axis.set(xscale="log", title=f"{source.name}, {source.length} tokens", xlabel="mixtures $k$")
        labels.ticks(axis, sorted({one.k for one in others}))
        axis.legend(loc="lower right", borderaxespad=0)
    axes[0, 0].set(ylabel="classified correctly (%)", ylim=(50, None))
    return figure
