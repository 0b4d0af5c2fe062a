"""Transformers learn to copy a word: ``linattn-ref train duplication``.

The task and the way it is learned are those of the authors' code (idiap/linear-transformer-experiments, causal-copy):
sinusoids beside the embeddings, blocks with their norms last, ReLU, RAdam with decoupled decay .01 and each array's
gradient clipped at 1, a rate of .001 that is divided by ten on the way. What differs: the network is smaller and reads
32 sequences at a time, theirs 64; it begins as `models.causal.draw` has it, not as PyTorch does; there is no dropout;
the rate is divided after eight tenths of the steps, where theirs is after three; and hashing has two buckets at 68
places and four at 128 (`causal_attention`), where theirs has 64 at any length.
"""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np

from linattn_ref.data.duplication import SYMBOLS, Words, draw
from linattn_ref.experiments.learning import causal_attention
from linattn_ref.experiments.learning.learn import Ready, check, settings
from linattn_ref.experiments.learning.options import Heads, Layers, Option, Width
from linattn_ref.experiments.learning.runs import Run
from linattn_ref.kernels import jit
from linattn_ref.models import causal
from linattn_ref.models.causal import Model, Params
from linattn_ref.nn import cross_entropy, positions, post_norm, relu
from linattn_ref.op.options import check_sizes
from linattn_ref.training import clip, loop, radam, schedule

__all__ = ["QUICK", "Shape", "begin", "model_of", "start", "task"]

HELD_OUT = 512  # sequences
AT_A_TIME = 32  # of them, which share what a mechanism draws
REDUCED = 8  # tenths of the steps, after which the rate is divided by ten
QUICK = {"width": 16, "layers": 1, "length": 12, "batch": 4}

AFTER = "steps after which the rate is divided by ten (default: eight tenths of all; in the paper's code: 3000)"


class Shape(NamedTuple):
    """How large the network is, and what it reads at a time."""

    width: Width = 64
    heads: Heads = 2
    layers: Layers = 2
    length: Annotated[int, Option("places (default: 68, for words of 17 to 32 symbols)", "S", 5)] = 68
    batch: Annotated[int, Option("sequences per step", "B")] = 32


class Batch(NamedTuple):
    """What one step learns from."""

    words: Words
    model: Model


def model_of(attention: str, shape: Shape, rng: np.random.Generator) -> Model:
    """The network without its parameters."""
    inside = causal_attention.draw(attention, rng, width=shape.width // shape.heads, length=shape.length)
    sinusoids = positions.sinusoidal(shape.length, shape.width // 2, dtype=np.float32)
    return Model(inside, shape.heads, post_norm, relu, sinusoids)


def start(attention: str, shape: Shape, rng: np.random.Generator) -> Params:
    """The parameters to start from."""
    network = {"width": shape.width, "hidden": 4 * shape.width, "layers": shape.layers, "sinusoids": shape.width // 2}
    read = {"tokens": SYMBOLS + 1, "places": shape.length, "reads": causal_attention.reads(attention)}
    params = causal.draw(rng, **network, **read, dtype=np.float32)
    params.embedding.table[...] /= 0.02  # of size 1, as the sinusoids are
    return params


def task(attention: str, shape: Shape) -> loop.Task:
    """Cross-entropy of the second copy."""

    def batch(rng: np.random.Generator) -> Batch:
        return Batch(draw(rng, count=shape.batch, length=shape.length), model_of(attention, shape, rng))

    def learn(params: Params, given: Batch, share: float) -> tuple[float, Params]:
        (read, told, counts), model = given
        scores, saved = causal.forward(read, params, model)
        weight = counts.astype(scores.dtype)
        loss, surprise = cross_entropy.forward(scores, told, weight=weight, kernels=jit)
        d_scores = cross_entropy.backward(share, surprise).scores
        return share * float(loss), causal.backward(d_scores, saved).params

    of_test = np.random.default_rng([2020, shape.length])  # the same words whatever the seed of the training
    held_out = draw(of_test, count=HELD_OUT, length=shape.length)
    slices = [slice(at, at + AT_A_TIME) for at in range(0, HELD_OUT, AT_A_TIME)]
    parts = [Words(held_out.read[some], held_out.told[some], held_out.counts[some]) for some in slices]
    # Hashes and features anew for each part: one draw for all would tell how lucky that was.
    batches = [Batch(words, model_of(attention, shape, of_test)) for words in parts]

    def evaluate(params: Params) -> dict[str, float]:
        loss = right = 0.0
        for (read, told, counts), model in batches:
            scores, _ = causal.forward(read, params, model)
            of_part, _ = cross_entropy.forward(scores, told, weight=counts.astype(scores.dtype))
            loss += float(of_part) * counts.sum()
            right += (scores.argmax(axis=-1) == told)[counts].sum()
        whole = held_out.counts.sum()
        return {"loss": float(loss / whole), "accuracy": float(right / whole)}

    return loop.Task(learn, batch, evaluate)


def begin(
    *,
    attention: Annotated[str, Option(choices=causal_attention.NAMES)] = "linear",
    steps: int = 10_000,
    seed: int = 0,
    shape: Shape = Shape(),  # noqa: B008  # a constant
    reduce_after: Annotated[int | None, Option(AFTER, "S")] = None,
) -> Ready:
    """Make it ready for `learn.run`.

    Parameters
    ----------
    attention : str
        One of `causal_attention.NAMES`.
    steps, seed : int
    shape : Shape
    reduce_after : int, optional
        Steps after which the rate is divided by ten; eight tenths of all unless given. The authors' code has 3000.
    """
    check(shape)
    facts: dict[str, Any] = {"attention": attention, "shape": shape._asdict()}
    at = REDUCED * steps // 10
    if reduce_after is not None:
        check_sizes(reduce_after=reduce_after)
        if reduce_after >= steps:
            raise ValueError(f"reduce_after: expected fewer than the {steps} steps, got {reduce_after}")
        facts["reduce_after"] = at = reduce_after
    falling, every = partial(schedule.milestones, rate=1e-3, at=(at,)), max(1, min(100, steps // 4))
    decay = {"weight_decay": 0.01, "decoupled": True}
    how = settings(steps, seed, falling, radam, every=every, clipped=clip.each, options=decay)

    def said(run: Run, params: Params) -> Iterator[str]:
        loss, right = run.curves["loss"][-1], run.curves["accuracy"][-1]
        yield f"{attention}, {run.after}: {loss:.4f} nats per symbol, {right:.2%} of them right"

    return Ready(task(attention, shape), start(attention, shape, np.random.default_rng(seed)), how, facts, said)
