"""A token of a whole network beside PyTorch and fast-transformers, on one thread; and images, pixel by pixel.

The network is the one of "Transformers are RNNs", section 4.2.1: 8 layers, 8 heads, ``E = 256``, norms last, with a
feed-forward layer of 1024, over 256 intensities and 784 places, float32, with parameters that nobody has trained. All
read the same tokens, and their scores are compared before the clock starts.

``jit``                 `linattn_ref.models.decoding`: one compiled call for all layers
``causal.step``         the same by the text, layer by layer, with this package's kernels
``pytorch``             tensors and operations, in as few calls as possible (`bench_generation_peers`)
``fast-transformers``   the package of the paper's authors: its recurrent encoder, with the same parameters
``ONNX Runtime``        one graph of the whole network, its inputs bound once
``weights read once``   every weight loaded and added up: what a token at batch size 1 takes at least

Images are drawn as `linattn_ref.models.generate` does it, sampling included.
`engine` says how time is measured.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.experiments.benches import bench_generation_peers as ways
from linattn_ref.experiments.benches import engine, peers, runtimes
from linattn_ref.experiments.benches.bench_generation_peers import Stateful, Tokens
from linattn_ref.experiments.benches.limits import read_all
from linattn_ref.experiments.learning import causal_attention
from linattn_ref.experiments.publishing.kit import Array, Figure, Generator, Ints, Results, labels, markdown, style
from linattn_ref.models import causal, decoding
from linattn_ref.models.generate import pick
from linattn_ref.nn import post_norm

__all__ = ["VALUES", "Size", "compiled", "compute", "draw", "network", "table"]

VALUES = 256
PEERS = peers.PYTORCH, runtimes.ONNX, peers.FAST
STEPS = 16  # tokens timed together: the first finds the caches with the weights of another
STRETCH = 28  # pixels timed together: a row of the image
TOLERANCE = 1e-4  # of the largest score: some hundred roundings of float32 in a row
WEIGHTS = "weights read once"
ORDER = ("jit", "causal.step", "pytorch", runtimes.ONNX, "fast-transformers", WEIGHTS)


class Size(NamedTuple):
    """A network, and where along an image `bench_drawing` times it."""

    layers: int
    heads: int
    width: int
    hidden: int
    numbers: int  # an image
    positions: tuple[int, ...] = ()  # from 1


SIZE = Size(8, 8, 256, 1024, 784)


@engine.bench("repeats", settings={"batches": 1})
def compute(
    *, batches: Ints = (1, 16), images: Ints = (1, 4, 16, 64), pixels: int = 784, repeats: int = 21, seed: int = 0
) -> engine.Measured:
    """Compare a token of a whole network with PyTorch, ONNX Runtime and fast-transformers on one thread, if installed.

    And draw images, by linear attention and softmax's cache. CPU time, in turn in one process.

    Parameters
    ----------
    batches : sequence of int
        Batch sizes of the comparison.
    images : sequence of int
        Batch sizes of the images.
    pixels : int
        An image; a multiple of 28, up to 784.
    repeats : int
        Rounds, after one that is not counted.
    seed : int
        Of all that is drawn.

    Raises
    ------
    ValueError
        A count below 1.
    RuntimeError
        Two ways disagree.
    """
    if pixels % STRETCH or pixels > SIZE.numbers:
        raise ValueError(f"pixels: expected a multiple of {STRETCH} up to {SIZE.numbers}, got {pixels}")
    torch, rng = engine.find("torch"), np.random.default_rng(seed)
    package = peers.fast_transformers("builders").get(peers.FAST)
    runtime = runtimes.find_runtimes().get(runtimes.ONNX)
    params, model = network("linear", SIZE, rng)
    for batch in batches:
        calls = _calls(params, model, rng.integers(0, VALUES, (SIZE.numbers, batch)), torch, package, runtime)
        options: dict[str, Any] = {"tolerance": TOLERANCE, "apart": [WEIGHTS], "often": STEPS}
        yield from engine.measure({"batch": batch}, calls, repeats, **options)
    drawn = tuple(_images(name, batch, pixels, rng) for name in ("linear", "softmax") for batch in images)
    versions = peers.versions(torch, {peers.FAST: package, runtimes.ONNX: runtime})
    return {"versions": versions, "rows": (), "images": drawn}


def network(attention: str, size: Size, rng: Generator) -> tuple[causal.Params, causal.Model]:
    """Drawn parameters, and what is not learned."""
    inside = causal_attention.draw(attention, rng, width=size.width // size.heads, length=size.numbers)
    sizes = {"tokens": VALUES, "places": size.numbers, "width": size.width, "hidden": size.hidden}
    how: dict[str, Any] = {"block": post_norm, "reads": inside.reads, "dtype": np.float32}
    params = causal.draw(rng, layers=size.layers, **sizes, **how)
    return params, causal.Model(inside, size.heads, block=post_norm)


# --- What is compared -----------------------------------------------------------------------------------------------


def _calls(
    params: causal.Params, model: causal.Model, tokens: Tokens, torch: Any, package: Any, runtime: Any
) -> dict[str, Callable[[], Sequence[Array]]]:
    """A token by name, ``jit`` first; from the start again where no place is left."""
    batch, packed = tokens.shape[1], decoding.pack(params, model)
    made = {"jit": compiled(packed), "causal.step": _by_text(params, model)}
    if torch is not None:
        made["pytorch"] = ways.by_hand(torch, params, model.heads)
    if package is not None:
        made["fast-transformers"] = ways.recurrent_encoder(torch, package.builders, params, model.heads)
    if runtime is not None:
        made[runtimes.ONNX] = ways.by_graph(runtime, params, model.heads)
    calls: dict[str, Callable[[], Any]] = {
        name: engine.going_on(partial(_token, tokens, way.step, way.states(batch)), (len(tokens), None))
        for name, way in made.items()
    }
    return calls | {WEIGHTS: partial(read_all, packed.weights)}


def _token(tokens: Tokens, step: Any, state_at: Callable[[int], Any], before: tuple[int, Any]) -> tuple[Array, Any]:
    place, state = before if before[0] < len(tokens) else (0, state_at(0))
    scores, state = step(tokens[place], place, state)
    return scores, (place + 1, state)


def compiled(packed: decoding.Packed) -> Stateful:
    """`linattn_ref.models.decoding`, from any place on: what is in a cache until then is of no note."""

    def states(batch: int) -> Callable[[int], decoding.State]:
        if packed.attention == "linear":
            return lambda place: decoding.init_state(batch, packed)._replace(place=place)
        cache = decoding.init_state(batch, packed)
        for memory in cache[:2]:
            memory[...] = 1  # its pages are there before the clock starts
        return lambda place: cache._replace(place=place)

    in_place = partial(decoding.step, overwrite_state=True)
    return Stateful(states, lambda tokens_t, _, state: in_place(tokens_t, packed, state))


def _by_text(params: causal.Params, model: causal.Model) -> Stateful:
    return Stateful(
        lambda batch: lambda _: causal.init_state(batch, params, model),
        lambda tokens_t, _, state: causal.step(tokens_t, params, state, model, overwrite_state=True),
    )


# --- Images ---------------------------------------------------------------------------------------------------------


def _images(attention: str, batch: int, pixels: int, rng: Generator) -> Results:
    """CPU time of the pixels of ``batch`` images, each drawn from the scores before it."""
    packed = decoding.pack(*network(attention, SIZE, rng))
    state = decoding.init_state(batch, packed)
    for memory in state[:2]:
        memory[...] = 0  # its pages are there before the clock starts
    tokens_t: Tokens = np.zeros(batch, np.int64)
    pixel_ms, start = [], time.process_time()
    for i in range(1, pixels + 1):
        scores, state = decoding.step(tokens_t, packed, state, overwrite_state=True)
        tokens_t = pick(scores, rng)
        if i % STRETCH == 0:
            now = time.process_time()
            pixel_ms.append(1e3 * (now - start) / STRETCH)
            start = now
    whole = STRETCH * sum(pixel_ms) / 1e3
    return Results(
        attention=attention,
        batch=batch,
        pixel_ms=tuple(pixel_ms),  # of all images, by stretch
        seconds=whole,
        images_per_second=batch / whole,
    )


# --- Showing --------------------------------------------------------------------------------------------------------


def table(results: Results) -> str:
    """Two Markdown tables, of a token and of images, and below them what stands in them.

    A token at batch size 1 asks for every weight once: `weights read once` is the limit, and a peer's ratio divided
    by its is the most that could be reached. fast-transformers is the package of the paper's authors.
    """
    lines = engine.table(("B",), results.rows, ORDER)
    header = "attention", "B", "seconds per batch", "images per second", "first pixel", "last pixel"
    rows = []
    for each in results.images:
        first, last = (f"{each.pixel_ms[end]:.2f} ms" for end in (0, -1))
        rows.append((each.attention, each.batch, f"{each.seconds:.2f}", f"{each.images_per_second:.2f}", first, last))
    note = (
        f"{SIZE.layers} layers, H = {SIZE.heads}, E = {SIZE.width}, feed-forward {SIZE.hidden}, float32, one thread, "
        f"{results.repeats} rounds; a token of the whole batch. {engine.TOLD}"
    )
    pixels = STRETCH * len(results.images[0].pixel_ms)
    ends = f"Images of {pixels} pixels; first and last: the mean of {STRETCH}, of the whole batch."
    images = markdown.table(header, rows, "llr")
    return engine.page(lines, images, note=[note, engine.compared(results.versions, PEERS), ends])


def draw(results: Results) -> Figure:
    """Images from a network of 8 layers, 8 heads, E = 256, one thread of a CPU, float32. Left: time of a pixel
    against its position, linear attention and softmax with its cache, at the least and the greatest batch size. Right:
    images per second against the batch size.
    """
    figure, (pixel, rate) = style.figure(1, 2, height=0.42)
    batches = sorted({each.batch for each in results.images})
    for each in (x for x in results.images if x.batch in (batches[0], batches[-1])):
        place = STRETCH * (np.arange(len(each.pixel_ms)) + 0.5)
        look = "-" if each.batch == batches[0] else "--"
        values = [1e3 * ms / each.batch for ms in each.pixel_ms]
        label = f"{each.attention},\nB = {each.batch}"
        pixel.plot(place, values, look, color=style.MECHANISMS[each.attention], label=label)
    pixel.set(title="per pixel", xlabel="position", ylabel="CPU time / B (µs)", yscale="log")
    for name in dict.fromkeys(each.attention for each in results.images):
        chosen = [each for each in results.images if each.attention == name]
        points = [each.batch for each in chosen], [each.images_per_second for each in chosen]
        rate.plot(*points, "o-", color=style.MECHANISMS[name], label=name)
    rate.set(title="images", xlabel="batch size", ylabel="images per second", xscale="log")
    labels.ticks(rate, batches)
    rate.set_ylim(bottom=0)
    labels.at_ends(pixel)
    labels.at_ends(rate)
    return figure
