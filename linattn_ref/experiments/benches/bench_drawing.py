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
per step, `linattn_ref.models.decoding`), by PyTorch and by fast-transformers, the package of the paper's authors, with
the same parameters (`bench_generation_peers`); PyTorch has no hashing. Scores are compared before the clock starts, but
those of hashing, whose planes each package draws itself.

Each is timed at a few positions and several batch sizes. Through the times goes a cubic spline, exact where the cost is
a polynomial in the position of up to the third degree, and in theory it is one of the second; its sum over all
positions is the time of an image: *integrated*, not measured. CPU time of one thread, sampling included.

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", section 4.2, tables 4 and 5.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy.interpolate import CubicSpline

from linattn_ref.data import reported
from linattn_ref.experiments.benches import bench_generation_peers as ways
from linattn_ref.experiments.benches import engine, peers
from linattn_ref.experiments.benches.bench_generation import VALUES, Size, compiled, network
from linattn_ref.experiments.measuring.measurements import measure_all
from linattn_ref.experiments.measuring.timing import one_thread
from linattn_ref.experiments.publishing.kit import Array, Figure, Generator, Results, labels, markdown, style
from linattn_ref.models import causal, decoding
from linattn_ref.models.generate import pick
from linattn_ref.op.workspace import workspace

__all__ = ["NETWORKS", "OURS", "PRINTED", "WAYS", "Results", "alone", "best", "compute", "draw", "table", "told"]

OURS = "linattn-ref"
LONG, VERY_LONG = 0.3, 3.0  # seconds: what takes longer is timed once after a first time, or once
STEPS = 16  # at most, of a stateful network, timed together
TOLERANCE = 1e-4  # of the largest score, as in `bench_generation`
Pixel = Callable[[int], float]  # CPU seconds of the pixel at a position


NETWORKS = {
    "MNIST": Size(8, 8, 256, 1024, 784, (32, 196, 392, 588, 784)),
    "CIFAR-10": Size(16, 8, 256, 1024, 3072, (32, 1024, 2048, 3072)),
}
ANEW = ("softmax", "lsh-1", "lsh-4")
STATEFUL = {"stateful-softmax": "softmax", "linear": "linear"}
WAYS = ("softmax", "stateful-softmax", "lsh-1", "lsh-4", "linear")  # as the paper's tables have them
PRINTED = {  # tables 4 and 5
    "MNIST": (reported.MNIST, reported.MNIST_SECONDS),
    "CIFAR-10": (reported.CIFAR_10, reported.CIFAR_10_SECONDS),
}
# Up to where more images at once gain nothing, or, for a cache of 100 MB per image, to what a machine of 16 GB holds.
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
    package = peers.fast_transformers("builders").get(peers.FAST)
    versions = peers.versions(torch, {peers.FAST: package})
    settings = {"sizes": sizes, "rounds": rounds, "seed": seed, "packages": versions}
    runs = {f"{name}-{way}-{n}": (name, way, n) for name in sizes for way in WAYS for n in BATCHES[name, way]}
    how = rounds, seed, torch, package
    tasks = {task: partial(measured, sizes[name], way, batch, *how) for task, (name, way, batch) in runs.items()}
    with one_thread(torch), workspace():
        found = measure_all(tasks, settings, **where)
    rows = [
        _row(name, way, by, batch, sizes[name], seconds)
        for task, (name, way, batch) in runs.items()
        for by, seconds in zip(packages(way, torch, package), found[task], strict=True)
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


# --- A pixel, by each package ---------------------------------------------------------------------------------------


def packages(way: str, torch: Any, package: Any) -> list[str]:
    """Those that have this way, this one first."""
    by_hand = torch is not None and not way.startswith("lsh")
    there = {OURS: True, peers.PYTORCH: by_hand, peers.FAST: package is not None}
    return [name for name, has in there.items() if has]


def measured(size: Size, way: str, batch: int, rounds: int, seed: int, torch: Any, package: Any) -> Array:
    """CPU seconds of a pixel of the whole batch, ``(packages, positions)``."""
    rng = np.random.default_rng(seed)
    params, model = network(STATEFUL.get(way, way), size, rng)
    tokens = rng.integers(0, VALUES, (batch, size.numbers))
    beginning = tokens[:4, :STEPS]
    if way in STATEFUL:
        stateful = _stateful(params, model, STATEFUL[way], torch, package)
        engine.compare(way, {by: _last(one, beginning) for by, one in stateful.items()}, TOLERANCE, to=OURS)
        pixels = [partial(stateful_pixel, one, one.states(batch), batch, rng) for one in stateful.values()]
    else:
        anew = _anew(params, model, way, torch, package)
        if way == "softmax":
            engine.compare(way, {by: (one(beginning),) for by, one in anew.items()}, TOLERANCE, to=OURS)
        pixels = [partial(anew_pixel, one, tokens, rng) for one in anew.values()]
    return np.transpose([_in_turn(pixels, position, rounds) for position in size.positions])


def _in_turn(pixels: Sequence[Pixel], position: int, rounds: int) -> list[float]:
    """The median of each, after a round that is not counted; what takes long is timed once, or in that round."""
    first = [pixel(position) for pixel in pixels]
    seconds: list[list[float]] = [[] for _ in pixels]
    for i in range(rounds):
        for pixel, before, so_far in zip(pixels, first, seconds, strict=True):
            if before < (VERY_LONG if i == 0 else LONG):
                so_far.append(pixel(position))
    return [float(np.median(counted or before)) for counted, before in zip(seconds, first, strict=True)]


def _stateful(
    params: causal.Params, model: causal.Model, attention: str, torch: Any, package: Any
) -> dict[str, ways.Stateful]:
    found = {OURS: compiled(decoding.pack(params, model))}
    if torch is not None:
        found[peers.PYTORCH] = ways.by_hand(torch, params, model.heads, attention)
    if package is not None:
        found[peers.FAST] = ways.recurrent_encoder(torch, package.builders, params, model.heads, attention)
    return found


def _anew(params: causal.Params, model: causal.Model, way: str, torch: Any, package: Any) -> dict[str, ways.Anew]:
    found: dict[str, ways.Anew] = {OURS: lambda tokens: causal.forward(tokens, params, model)[0][:, -1].copy()}
    if torch is not None and way == "softmax":
        found[peers.PYTORCH] = ways.anew_by_hand(torch, params, model.heads)
    if package is not None:
        kind, options = ("full", {}) if way == "softmax" else ("reformer", _hashing(model))
        found[peers.FAST] = ways.encoder(torch, package.builders, params, model.heads, kind, **options)
    return found


def _hashing(model: causal.Model) -> dict[str, int]:
    """What fast-transformers' Reformer calls its options; half of its buckets are planes."""
    options = model.mechanism.options
    rounds, _, planes = options["rotations"].shape
    return {"rounds": rounds, "bits": planes, "chunk_size": options["chunk"]}


def _last(one: ways.Stateful, tokens: ways.Tokens) -> tuple[Array]:
    """Scores after all tokens."""
    state = one.states(len(tokens))(0)
    for place, tokens_t in enumerate(tokens.T):
        scores, state = one.step(tokens_t, place, state)
    return (scores,)


def stateful_pixel(one: ways.Stateful, state_at: Any, batch: int, rng: Generator, position: int) -> float:
    """CPU seconds of the pixel at ``position``: the mean of some that end there, after one that is not counted."""
    steps = min(STEPS, max(2, 64 // batch))
    first = position - steps
    tokens_t: ways.Tokens = np.zeros(batch, np.int64)
    _, state = one.step(tokens_t, first - 1, state_at(first - 1))
    start = time.process_time()
    for place in range(first, position):
        scores, state = one.step(tokens_t, place, state)
        tokens_t = pick(scores, rng)
    return (time.process_time() - start) / steps


def anew_pixel(one: ways.Anew, tokens: ways.Tokens, rng: Generator, position: int) -> float:
    """CPU seconds of the pixel after ``position`` tokens: all of them are read again."""
    start = time.process_time()
    pick(one(tokens[:, :position]), rng)
    return time.process_time() - start


# --- Showing --------------------------------------------------------------------------------------------------------


def best(results: Results, network: str, way: str, by: str = OURS) -> Results | None:
    """The batch size of most images per second; None where that package has no such way."""
    rows = engine.rows_of(results, network=network, way=way, by=by)
    return max(rows, key=lambda row: row.images_per_second, default=None)


def alone(results: Results, network: str, way: str, by: str = OURS) -> Results | None:
    """At batch size 1."""
    return next(iter(engine.rows_of(results, network=network, way=way, by=by, batch=1)), None)


def table(results: Results) -> str:
    """A Markdown table per network, beside what the paper prints.

    CPU time of one thread, integrated over positions; a pixel that takes over 0.3 s is timed once, after a first
    time that does not count, and one that takes over 3 s once, the first time. *Best B* is the batch size, of those
    in the record, that gives most images per second, and *times softmax* is over the same package's softmax that
    reads everything again. In print: the paper's tables 5 (one image on a CPU) and 4 (a GPU, and as many images as
    fit).
    """
    lines = []
    for name, (images, seconds) in PRINTED.items():
        here = (name, "by", "B = 1: s per image", "over linear", "best B", "images per second", "times softmax")
        paper = ("in print, CPU: s per image", "over linear", "in print, GPU: images per second", "times softmax")
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
    """One image: seconds, and over linear. Of the best batch: its size, images per second, and over softmax anew."""
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
    package. Points are measured CPU time; seconds per image are integrated along them. Below: images per second against
    the batch size; solid: this package, dashed: PyTorch, dotted: fast-transformers.
    """
    names = list(dict.fromkeys(row.network for row in results.rows))
    figure, panels = style.figure(2, len(names), height=0.8, sharey="row")
    ends = []
    for (pixel, rate), name in zip(panels.T, names, strict=True):
        rows = [row for way in WAYS if (row := alone(results, name, way))]
        for row in rows:
            pixel.plot(row.positions, 1e3 * row.seconds, "o-", color=COLOURS[row.way])
        pixel.set(title=f"{name}, per pixel (labels: per image)", xlabel="position", yscale="log")
        ends.append([f"{row.way.replace('stateful-softmax', 'cache')}: {_short(row.image)}" for row in rows])
        for way, by in dict.fromkeys((row.way, row.by) for row in engine.rows_of(results, network=name)):
            found = engine.rows_of(results, network=name, way=way, by=by)
            points = [row.batch for row in found], [row.images_per_second for row in found]
            label = way.replace("stateful-softmax", "cache") if by == OURS else ""
            rate.plot(*points, LOOKS[by], color=COLOURS[way], label=label)
        rate.set(title=f"{name}, images per second", xlabel="batch size", xscale="log", yscale="log")
    for pixel, written in zip(panels[0], ends, strict=True):  # when all limits are set
        labels.at_ends(pixel, pixel.lines, written, rows=2)
    for rate in panels[1]:
        labels.ticks(rate, [1, 4, 16, 64, 256])
        labels.at_ends(rate, rows=2)
    panels[0][0].set(ylabel="CPU time of a pixel (ms)")
    return figure


def _short(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:,.0f} s"
