"""What one more pixel costs against its position, in whole networks: all of it anew, from a cache, from sums.

The networks are the two of "Transformers are RNNs" (sections 4.2.1 and 4.2.2), with parameters that nobody has trained:

=========  ======  =====  ===  ========
..         layers  heads  E    numbers
=========  ======  =====  ===  ========
MNIST      8       8      256  784
CIFAR-10   16      8      256  3072
=========  ======  =====  ===  ========

``softmax``, ``lsh-1`` and ``lsh-4`` read everything again for each pixel, as the paper has them; ``stateful-softmax``
keeps keys and values, ``linear`` two sums a head, both in one compiled call a step (`linattn_ref.models.decoding`).

Each is timed at a few positions. Between them the cost is taken to run straight, and the sum over all positions is the
time of an image: *integrated*, not measured. CPU time of one thread, sampling included.

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", section 4.2, tables 4 and 5.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.random import Generator
from numpy.typing import NDArray

from linattn_ref.attention import softmax
from linattn_ref.attention.arguments import Array
from linattn_ref.attention.ownership import new_count
from linattn_ref.experiments.learning import causal_attention
from linattn_ref.experiments.measuring.timing import one_thread
from linattn_ref.experiments.publishing import labels, style
from linattn_ref.experiments.publishing.restore import restore
from linattn_ref.models import causal, decoding
from linattn_ref.models.generate import pick
from linattn_ref.nn import post_norm

__all__ = ["ANEW", "NETWORKS", "STATEFUL", "Results", "Row", "compute", "draw", "from_record"]


class Size(NamedTuple):
    """A network, and where along an image it is timed."""

    layers: int
    heads: int
    width: int
    hidden: int
    numbers: int  # an image
    positions: tuple[int, ...]  # from 1


NETWORKS = {
    "MNIST": Size(8, 8, 256, 1024, 784, (32, 196, 392, 588, 784)),
    "CIFAR-10": Size(16, 8, 256, 1024, 3072, (32, 1024, 2048, 3072)),
}
QUICK = {"MNIST": Size(2, 2, 8, 16, 784, (32, 784)), "CIFAR-10": Size(3, 2, 8, 16, 3072, (32, 512))}
STATEFUL = {"stateful-softmax": "softmax", "linear": "linear"}
ANEW = ("softmax", "lsh-1", "lsh-4")
BATCHES = {"MNIST": (1, 16), "CIFAR-10": (1, 4)}  # of what keeps a state; what does not is timed at 1
VALUES = 256
STEPS = 16  # of a stateful network, timed together
COLOURS = {
    "softmax": style.BLACK,
    "stateful-softmax": style.VERMILLION,
    "lsh-1": style.PURPLE,
    "lsh-4": "#7A3B62",
    "linear": style.BLUE,
}
CAPTION = (
    "One more pixel at batch size 1 against its position, in the networks of Transformers are RNNs for MNIST (8 layers "
    "of 256) and CIFAR-10 (16 layers), float32, one thread of a CPU: everything anew (softmax, lsh), from keys and "
    "values that are kept (cache), from two sums a head (linear). Points are measured CPU time; seconds an image are "
    "the sum over all positions of the lines between the points."
)


class Row(NamedTuple):
    """One way to draw with one network."""

    network: str
    way: str
    batch: int
    positions: NDArray[np.int64]  # (T,)
    seconds: Array  # (T,), CPU time of a pixel of the whole batch: the median of the rounds
    image: float  # seconds of all pixels of the whole batch, integrated
    images_per_second: float


class Results(NamedTuple):
    rounds: int
    rows: tuple[Row, ...]


def compute(*, rng: Generator, quick: bool = False, rounds: int = 3) -> Results:
    """Time a pixel at every position, in every way.

    Parameters
    ----------
    rng : numpy.random.Generator
        Draws the networks, which no time depends on.
    quick : bool
        Small networks: for tests.
    rounds : int
        Of timing, of which the median counts; at more than a second each, one.
    """
    rows = []
    with one_thread(None):
        for name, size in (QUICK if quick else NETWORKS).items():
            for way, attention in STATEFUL.items():
                params, model = network(attention, size, rng)
                packed = decoding.pack(params, model)
                for batch in BATCHES[name]:
                    at = [partial(stateful_step, packed, batch, t, rng) for t in size.positions]
                    rows.append(_row(name, way, batch, size, at, rounds))
            for way in ANEW:
                params, model = network(way, size, rng)
                tokens = rng.integers(0, VALUES, (1, size.numbers))
                at = [partial(anew, params, model, tokens[:, :t], rng) for t in size.positions]
                rows.append(_row(name, way, 1, size, at, rounds))
    return Results(rounds, tuple(rows))


def network(attention: str, size: Size, rng: Generator) -> tuple[causal.Params, causal.Model]:
    """Drawn parameters, and what is not learned."""
    mechanism = causal_attention.draw(attention, rng, width=size.width // size.heads, length=size.numbers)
    params = causal.draw(
        rng,
        tokens=VALUES,
        places=size.numbers,
        width=size.width,
        hidden=size.hidden,
        layers=size.layers,
        block=post_norm,
        reads=causal_attention.reads(attention),
        dtype=np.float32,
    )
    return params, causal.Model(mechanism, size.heads, block=post_norm)


def stateful_step(packed: decoding.Packed, batch: int, position: int, rng: Generator) -> float:
    """CPU seconds of the pixel at ``position``, the mean of the ``STEPS`` that end there."""
    before = position - STEPS
    state = decoding.init_state(batch, packed)
    for memory in state.blocks[:2]:
        memory[...] = rng.random(memory.shape, np.float32)  # pages that are there, numbers that are none of note
    blocks = state.blocks
    if isinstance(blocks, softmax.State):
        blocks = blocks._replace(length=before, rows=new_count(before))
    tokens_t: NDArray[np.integer[Any]] = np.zeros(batch, np.int64)
    state = decoding.State(blocks, before)
    start = time.process_time()
    for _ in range(STEPS):
        scores, state = decoding.step(tokens_t, packed, state)
        tokens_t = pick(scores, rng)
    return (time.process_time() - start) / STEPS


def anew(params: causal.Params, model: causal.Model, tokens: NDArray[np.int64], rng: Generator) -> float:
    """CPU seconds of the pixel after ``tokens (1, t)``: all of them are read again."""
    start = time.process_time()
    pick(causal.forward(tokens, params, model)[0][:, -1], rng)
    return time.process_time() - start


def _row(name: str, way: str, batch: int, size: Size, at: Sequence[Callable[[], float]], rounds: int) -> Row:
    at[0]()  # whatever is to be compiled is now
    seconds = np.array([_median(one, rounds) for one in at])
    positions = np.array(size.positions)
    image = float(np.interp(np.arange(1, size.numbers + 1), positions, seconds).sum())
    return Row(name, way, batch, positions, seconds, image, batch / image)


def _median(one: Callable[[], float], rounds: int) -> float:
    first = one()
    return first if first > 1 else float(np.median([first, *(one() for _ in range(rounds - 1))]))


def from_record(document: Mapping[str, Any]) -> Results:
    """Results from a figure's record."""
    return restore(Results, document["results"])


def draw(results: Results) -> Figure:
    """CPU time of a pixel against its position, a panel a network."""
    names = list(dict.fromkeys(row.network for row in results.rows))
    figure, panels = style.figure(1, len(names), height=0.42, sharey=True)
    ends = []
    for axes, name in zip(panels, names, strict=True):
        rows = [row for row in results.rows if row.network == name and row.batch == 1]
        for row in rows:
            axes.plot(row.positions, 1e3 * row.seconds, "o-", color=COLOURS[row.way])
        axes.set(title=f"{name}, seconds an image", xlabel="position", yscale="log")
        ends.append([f"{row.way.replace('stateful-softmax', 'cache')}: {_told(row.image)}" for row in rows])
    for axes, told in zip(panels, ends, strict=True):  # when all limits are set
        labels.at_ends(axes, axes.lines, told)
    panels[0].set(ylabel="CPU time of a pixel (ms)")
    return figure


def _told(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:,.0f} s"
