"""What one more pixel costs against its position, in whole networks: all of it anew, from a cache, from sums.

The networks are the two of "Transformers are RNNs" (sections 4.2.1 and 4.2.2), with parameters that nobody has trained:

=========  ======  =====  ===  ========
..         layers  heads  E    numbers
=========  ======  =====  ===  ========
MNIST      8       8      256  784
CIFAR-10   16      8      256  3072
=========  ======  =====  ===  ========

``softmax``, ``lsh-1`` and ``lsh-4`` read everything again for each pixel, as the paper has them; ``stateful-softmax``
keeps keys and values, ``linear`` two sums per head. Each is run by this package (the stateful ones in one compiled call
a step, `linattn_ref.models.decoding`), by PyTorch and by fast-transformers, the package of the paper's authors, with
the same parameters (`bench_generation_peers`); PyTorch has no hashing. Scores are compared before the clock starts, but
those of hashing, whose planes each package draws itself.

Each is timed at a few positions and several batch sizes. Through the times goes a cubic spline, exact where the cost is
a polynomial in the position of up to the third degree, and in theory it is one of the second; its sum over all
positions is the time of an image: *integrated*, not measured. CPU time of one thread, sampling included.

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", section 4.2, tables 4 and 5.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy.interpolate import CubicSpline

from linattn_ref.data import reported
from linattn_ref.experiments.benches import engine, peers
from linattn_ref.experiments.benches.bench_drawing_ways import OURS, Size, measured, packages
from linattn_ref.experiments.measuring.measurements import measure_all
from linattn_ref.experiments.measuring.timing import one_thread
from linattn_ref.experiments.publishing.kit import Array, Axes, Figure, Results, labels, markdown, style
from linattn_ref.op.workspace import workspace

__all__ = ["NETWORKS", "OURS", "PRINTED", "WAYS", "Results", "alone", "best", "compute", "draw", "table", "told"]


NETWORKS = {
    "MNIST": Size(8, 8, 256, 1024, 784, (32, 196, 392, 588, 784)),
    "CIFAR-10": Size(16, 8, 256, 1024, 3072, (32, 1024, 2048, 3072)),
}
ANEW = ("softmax", "lsh-1", "lsh-4")
WAYS = ("softmax", "stateful-softmax", "lsh-1", "lsh-4", "linear")  # as the paper's tables have them
PRINTED = {  # tables 4 and 5
    "MNIST": (reported.MNIST, reported.MNIST_SECONDS),
    "CIFAR-10": (reported.CIFAR_10, reported.CIFAR_10_SECONDS),
}
# Up to where more images at once gain nothing, or, for a cache of 100 MB an image, to what a machine of 16 GB holds.
BATCHES = {
    ("MNIST", "linear"): (1, 4, 16, 64, 256),
    ("MNIST", "stateful-softmax"): (1, 4, 16, 64),
    ("CIFAR-10", "linear"): (1, 4, 16, 64, 256),
    ("CIFAR-10", "stateful-softmax"): (1, 4, 16),
    **{("MNIST", way): (1, 4) for way in ANEW},
    **{("CIFAR-10", way): (1, 2) for way in ANEW},
}
COLOURS = dict(zip(WAYS, (style.BLACK, style.VERMILLION, style.PURPLE, "#7A3B62", style.BLUE), strict=True))
LOOKS = {OURS: "o-", peers.PYTORCH: "s--", peers.FAST: "^:"}


QUICK = {"sizes": {"MNIST": Size(2, 2, 8, 16, 784, (32, 784)), "CIFAR-10": Size(3, 2, 8, 16, 3072, (32, 512))}}


def compute(*, seed: int = 0, sizes: Mapping[str, Size] = NETWORKS, rounds: int = 3, **where: Any) -> Results:
    """Time an image in five ways beside PyTorch and fast-transformers, if installed (Table 5).

    Networks of the paper's sizes, MNIST's and CIFAR-10's, at some positions and batch sizes. CPU time, in turn.

    Parameters
    ----------
    seed : int
        Draws the networks, which no time depends on.
    sizes : mapping
        By the name of a network.
    rounds : int
        Of timing, of which the median counts, after one that does not. A pixel that took 0.3 s in that one is timed
        once more, and one that took 3 s not again: then that one counts.
    **where
        As in `measure_all`: a part is a way and a batch size, of all packages, which are timed in turn.

    Raises
    ------
    RuntimeError
        Two packages disagree.
    """
    torch = engine.find("torch")
    package = None if torch is None else peers.fast_transformers("builders").get(peers.FAST)
    versions = peers.versions(torch, {peers.FAST: package})
    settings = {"sizes": sizes, "rounds": rounds, "seed": seed, "packages": versions}
    runs = [(name, way, batch) for name in sizes for way in WAYS for batch in BATCHES[name, way]]
    tasks = {
        f"{name}-{way}-{batch}": partial(measured, sizes[name], way, batch, rounds, seed, torch, package)
        for name, way, batch in runs
    }
    with one_thread(torch), workspace():
        found = measure_all(tasks, settings, **where)
    rows = [
        _row(name, way, by, batch, sizes[name], seconds)
        for name, way, batch in runs
        for by, seconds in zip(packages(way, torch, package), found[f"{name}-{way}-{batch}"], strict=True)
    ]
    return Results(rounds=rounds, versions=versions, rows=tuple(rows))  # versions: of the other packages


def _row(name: str, way: str, by: str, batch: int, size: Size, seconds: Array) -> Results:
    positions = np.array(size.positions)
    image = float(CubicSpline(positions, seconds)(np.arange(1, size.numbers + 1)).sum())
    return Results(
        network=name,
        way=way,
        by=by,  # the package
        batch=batch,
        positions=positions,  # (T,)
        seconds=seconds,  # (T,), CPU time of a pixel of the whole batch: the median of the rounds
        image=image,  # seconds of all pixels of the whole batch, integrated
        images_per_second=batch / image,
    )


# --- Showing --------------------------------------------------------------------------------------------------------


def best(results: Results, network: str, way: str, by: str = OURS) -> Results | None:
    """The batch size of most images a second; None where that package has no such way."""
    rows = [row for row in results.rows if (row.network, row.way, row.by) == (network, way, by)]
    return max(rows, key=lambda row: row.images_per_second, default=None)


def alone(results: Results, network: str, way: str, by: str = OURS) -> Results | None:
    """At batch size 1."""
    rows = {(row.network, row.way, row.by): row for row in results.rows if row.batch == 1}
    return rows.get((network, way, by))


def table(results: Results) -> str:
    """A Markdown table a network, beside what the paper prints.

    CPU time of one thread, integrated over positions; a pixel that takes over 0.3 s is timed once, after a first
    time that does not count, and one that takes over 3 s once, the first time. *Best B* is the batch size, of those
    in the record, that gives most images a second, and *times softmax* is over the same package's softmax that
    reads everything again. In print: the paper's tables 5 (one image on a CPU) and 4 (a GPU, and as many images as
    fit).
    """
    lines = []
    for name, (images, seconds) in PRINTED.items():
        here = (name, "by", "B = 1: s per image", "over linear", "best B", "images a second", "times softmax")
        paper = ("in print, CPU: s per image", "over linear", "in print, GPU: images a second", "times softmax")
        rows = []
        for way in WAYS:
            cpu, gpu = seconds[way].cpu, images[way]
            printed = cpu, cpu / seconds["linear"].cpu, gpu.images_per_second, gpu.times_faster
            for by in LOOKS:
                if cells := told(results, name, way, by):
                    rows.append([way, by, *cells, *(printed if by == OURS else [""] * 4)])
        shown = [[f"{cell:.3g}" if isinstance(cell, float) else cell for cell in row] for row in rows]
        lines += [*markdown.table(here + paper, shown, "llr"), ""]
    return "\n".join([*lines, engine.compared(results.versions, (peers.PYTORCH, peers.FAST))])


def told(results: Results, network: str, way: str, by: str) -> tuple[float, ...] | None:
    """One image: seconds, and over linear. Of the best batch: its size, images a second, and over softmax anew."""
    one, most = alone(results, network, way, by), best(results, network, way, by)
    linear, softmax = alone(results, network, "linear", by), best(results, network, "softmax", by)
    if not (one and most and linear and softmax):
        return None
    gain = most.images_per_second / softmax.images_per_second
    return one.image, one.image / linear.image, most.batch, most.images_per_second, gain


def draw(results: Results) -> Figure:
    """The time of one more pixel, in the networks of Transformers are RNNs for MNIST (8 layers of 256) and CIFAR-10
    (16 layers), float32, on one thread of a CPU. Softmax and lsh read everything again, the cache keeps keys and
    values, and linear attention keeps two sums per head. Above: against its position, at batch size 1, by this
    package. Points are measured CPU time; seconds per image are integrated along them. Below: images a second against
    the batch size; solid: this package, dashed: PyTorch, dotted: fast-transformers.
    """
    names = list(dict.fromkeys(row.network for row in results.rows))
    figure, panels = style.figure(2, len(names), height=0.8, sharey="row")
    ends = []
    for (pixel, rate), name in zip(panels.T, names, strict=True):
        rows = [row for way in WAYS if (row := alone(results, name, way))]
        for row in rows:
            pixel.plot(row.positions, 1e3 * row.seconds, "o-", color=COLOURS[row.way])
        pixel.set(title=f"{name}, a pixel (labels: an image)", xlabel="position", yscale="log")
        ends.append([f"{row.way.replace('stateful-softmax', 'cache')}: {_short(row.image)}" for row in rows])
        _draw_rates(rate, [row for row in results.rows if row.network == name])
        rate.set(title=f"{name}, images a second", xlabel="batch size", xscale="log", yscale="log")
    for pixel, written in zip(panels[0], ends, strict=True):  # when all limits are set
        labels.at_ends(pixel, pixel.lines, written, rows=2)
    for rate in panels[1]:
        labels.ticks(rate, [1, 4, 16, 64, 256])
        labels.at_ends(rate, rows=2)
    panels[0][0].set(ylabel="CPU time of a pixel (ms)")
    return figure


def _draw_rates(axes: Axes, rows: Sequence[Results]) -> None:
    for way, by in dict.fromkeys((row.way, row.by) for row in rows):
        points = [(row.batch, row.images_per_second) for row in rows if (row.way, row.by) == (way, by)]
        label = way.replace("stateful-softmax", "cache") if by == OURS else ""
        axes.plot(*zip(*points, strict=True), LOOKS[by], color=COLOURS[way], label=label)


def _short(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:,.0f} s"
