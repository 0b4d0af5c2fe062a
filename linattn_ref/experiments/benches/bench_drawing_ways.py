"""The ways to write an image in `bench_drawing`, by each package, and what a pixel takes.

Before the clock starts all packages are asked for the same scores. Hashing is left out of that: each package draws its
planes itself.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.experiments.benches import bench_generation_peers as peers
from linattn_ref.experiments.benches import engine
from linattn_ref.experiments.benches.bench_generation import compiled
from linattn_ref.experiments.benches.peers import FAST, PYTORCH
from linattn_ref.experiments.learning import causal_attention
from linattn_ref.experiments.publishing.kit import Array, Generator, NDArray
from linattn_ref.models import causal, decoding
from linattn_ref.models.generate import pick
from linattn_ref.nn import post_norm

__all__ = ["OURS", "STATEFUL", "Size", "measured", "packages"]

OURS = "linattn-ref"
STATEFUL = {"stateful-softmax": "softmax", "linear": "linear"}
VALUES = 256
LONG, VERY_LONG = 0.3, 3.0  # seconds: what takes longer is timed once after a first time, or once
STEPS = 16  # at most, of a stateful network, timed together
TOLERANCE = 1e-4  # of the largest score, as in `bench_generation`
Pixel = Callable[[int], float]  # CPU seconds of the pixel at a position


class Size(NamedTuple):
    """A network, and where along an image it is timed."""

    layers: int
    heads: int
    width: int
    hidden: int
    numbers: int  # an image
    positions: tuple[int, ...]  # from 1


def packages(way: str, torch: Any, package: Any) -> list[str]:
    """Those that have this way, this one first."""
    there = {OURS: True, PYTORCH: torch is not None and not way.startswith("lsh"), FAST: package is not None}
    return [name for name, has in there.items() if has]


def measured(size: Size, way: str, batch: int, rounds: int, seed: int, torch: Any, package: Any) -> Array:
    """CPU seconds of a pixel of the whole batch, ``(packages, positions)``."""
    rng = np.random.default_rng(seed)
    params, model = network(STATEFUL.get(way, way), size, rng)
    tokens = rng.integers(0, VALUES, (batch, size.numbers))
    beginning = tokens[:4, :STEPS]
    pixels: dict[str, Pixel] = {}
    if way in STATEFUL:
        stateful = _stateful(params, model, STATEFUL[way], torch, package)
        engine.compare(way, {by: _last(one, beginning) for by, one in stateful.items()}, TOLERANCE, to=OURS)
        pixels = {by: partial(stateful_pixel, one, one.states(batch), batch, rng) for by, one in stateful.items()}
    else:
        anew = _anew(params, model, way, torch, package)
        if way == "softmax":
            engine.compare(way, {by: (one(beginning),) for by, one in anew.items()}, TOLERANCE, to=OURS)
        pixels = {by: partial(anew_pixel, one, tokens, rng) for by, one in anew.items()}
    return np.transpose([_in_turn(list(pixels.values()), position, rounds) for position in size.positions])


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
) -> dict[str, peers.Stateful]:
    ways = {OURS: compiled(decoding.pack(params, model))}
    if torch is not None:
        ways[PYTORCH] = peers.by_hand(torch, params, model.heads, attention)
    if package is not None:
        ways[FAST] = peers.recurrent_encoder(torch, package.builders, params, model.heads, attention)
    return ways


def _anew(params: causal.Params, model: causal.Model, way: str, torch: Any, package: Any) -> dict[str, peers.Anew]:
    ways: dict[str, peers.Anew] = {OURS: lambda tokens: causal.forward(tokens, params, model)[0][:, -1].copy()}
    if torch is not None and way == "softmax":
        ways[PYTORCH] = peers.anew_by_hand(torch, params, model.heads)
    if package is not None:
        kind, options = ("full", {}) if way == "softmax" else ("reformer", _hashing(model))
        ways[FAST] = peers.encoder(torch, package.builders, params, model.heads, kind, **options)
    return ways


def network(attention: str, size: Size, rng: Generator) -> tuple[causal.Params, causal.Model]:
    """Drawn parameters, and what is not learned."""
    inside = causal_attention.draw(attention, rng, width=size.width // size.heads, length=size.numbers)
    sizes = {"tokens": VALUES, "places": size.numbers, "width": size.width, "hidden": size.hidden}
    how: dict[str, Any] = {"block": post_norm, "reads": inside.reads, "dtype": np.float32}
    params = causal.draw(rng, layers=size.layers, **sizes, **how)
    return params, causal.Model(inside, size.heads, block=post_norm)


def _hashing(model: causal.Model) -> dict[str, int]:
    """What fast-transformers' Reformer calls its options; half of its buckets are planes."""
    options = model.mechanism.options
    rounds, _, planes = options["rotations"].shape
    return {"rounds": rounds, "bits": planes, "chunk_size": options["chunk"]}


def _last(one: peers.Stateful, tokens: NDArray[np.int64]) -> tuple[Array]:
    """Scores after all tokens."""
    state = one.states(len(tokens))(0)
    for place, tokens_t in enumerate(tokens.T):
        scores, state = one.step(tokens_t, place, state)
    return (scores,)


def stateful_pixel(
    one: peers.Stateful, state_at: Callable[[int], Any], batch: int, rng: Generator, position: int
) -> float:
    """CPU seconds of the pixel at ``position``: the mean of some that end there, after one that is not counted."""
    steps = min(STEPS, max(2, 64 // batch))
    first = position - steps
    tokens_t: NDArray[np.integer[Any]] = np.zeros(batch, np.int64)
    _, state = one.step(tokens_t, first - 1, state_at(first - 1))
    start = time.process_time()
    for place in range(first, position):
        scores, state = one.step(tokens_t, place, state)
        tokens_t = pick(scores, rng)
    return (time.process_time() - start) / steps


def anew_pixel(one: peers.Anew, tokens: NDArray[np.int64], rng: Generator, position: int) -> float:
    """CPU seconds of the pixel after ``position`` tokens: all of them are read again."""
    start = time.process_time()
    pick(one(tokens[:, :position]), rng)
    return time.process_time() - start
