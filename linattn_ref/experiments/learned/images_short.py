"""Short runs of drawing, of more kinds than the long ones, and to see how far apart three seeds of one kind lie.

They were made by ``linattn-ref train images --steps 2000 --peak 4e-3``, with ``--seed``, ``--attention`` or ``--head``,
when it still evaluated on test images, and are gathered in ``figures/records/images_short.json`` under the name of
their kind and the seed. The rate ends at 0.

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", section 4.2.1, table 1.
"""

from pathlib import Path

import numpy as np

from linattn_ref.experiments.learned import seeds
from linattn_ref.experiments.learned.images_learned import check_on_test_images
from linattn_ref.experiments.learning import runs
from linattn_ref.experiments.publishing.kit import Figure, Results, labels, style

__all__ = ["Results", "compute", "draw"]

LOOK = {  # colour, line
    "linear": (style.BLUE, "-"),
    "softmax": (style.BLACK, "-"),
    "mixture": (style.BLUE, "--"),
    "lsh-1": (style.MECHANISMS["reformer"], "-"),
}


def compute(*, record: Path = runs.RECORDS / "images_short.json") -> Results:
    """The committed runs, or those in another file of `runs.gather`; nothing is trained."""
    gathered = runs.gathered(record)
    check_on_test_images(gathered)
    found = seeds.kinds(gathered)
    return Results(kinds={name: _kind(found[name]) for name in LOOK if name in found})


def _kind(of_one_kind: list[runs.Run]) -> Results:
    """The runs that differ in their seed alone."""
    first = of_one_kind[0]
    return seeds.put_together(
        "command attention head seeds images cpu_minutes bits bits_without_first processor",
        of_one_kind,
        **{name: first.facts[name] for name in ("command", "attention", "head")},  # head: what is said of a pixel
        images=first.steps * first.facts["shape"]["batch"],  # (T,), seen
        cpu_minutes=np.array([run.cpu_seconds for run in of_one_kind]) / 60,  # (S, T)
    )


def draw(results: Results) -> Figure:
    """Short runs that learn to draw MNIST digits: bits per pixel of the first 512 test images, against images seen
    and against CPU time of the training alone. The networks have 4 layers of 64 with 2 heads, and 2,000 updates of 8
    images. Linear and softmax attention: the median of three seeds in a band from the least to the greatest. One seed
    each: linear attention that predicts a mixture of ten logistic distributions in the place of 256 scores; lsh-1.
    """
    figure, panels = style.figure(1, 2, height=0.42, sharey=True)
    for axes, against in zip(panels, ("images", "cpu_minutes"), strict=True):
        for name, kind in results.kinds.items():
            x = kind.images / 1000 if against == "images" else np.median(kind.cpu_minutes, axis=0)
            seeds.draw(axes, x, kind.bits, *LOOK[name])
    seen, spent = panels
    seen.set(xlabel="images seen (thousands)", ylabel="bits per pixel", title="by images")
    spent.set(xlabel="CPU minutes", title="by time")
    names = [f"{name} {np.median(kind.bits[:, -1]):.3f}" for name, kind in results.kinds.items()]
    for axes in panels:
        labels.at_ends(axes, list(axes.lines), names)
    return figure
