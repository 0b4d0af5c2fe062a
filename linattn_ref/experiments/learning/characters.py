"""A small transformer learns to write, a character at a time: ``linattn-ref train characters``.

It reads windows of a text and is to say at each place which character comes next. Its loss is the mean surprise, in
nats per character; beside it stand what the frequencies of single characters have, without any context, and those of
pairs, by the last character. In the end it writes, as a recurrent network; with linear attention, that needs two sums
per head.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.attention import linear, softmax
from linattn_ref.data import fetch
from linattn_ref.data.text import ALICE, Text, read_reviews, read_text
from linattn_ref.experiments.learning.learn import Ready, check, settings, sizes
from linattn_ref.experiments.learning.options import Option, Peak, TextFile
from linattn_ref.experiments.learning.runs import Run
from linattn_ref.kernels import jit
from linattn_ref.models import causal
from linattn_ref.models.causal import Model, Params
from linattn_ref.models.generate import generate
from linattn_ref.nn import cross_entropy, mechanism, positions
from linattn_ref.op.options import check_choice
from linattn_ref.training import loop, radam, schedule

__all__ = ["MECHANISMS", "QUICK", "Corpus", "Shape", "begin", "corpus", "task", "write"]

ALPHABET = 95  # characters, the most frequent; in place of any other stands the least frequent of these
SPREAD = 0.5  # of what embeddings begin with: the sinusoids beside them are of size 1
VALIDATION = 20  # one in so many characters, at the end of the text
MECHANISMS = {"linear": linear, "softmax": softmax}
NETWORK = {"width": 64, "hidden": 256, "heads": 4, "layers": 2, "length": 128, "batch": 8}
QUICK = {"text": ALICE, "steps": 3000, "peak": 8e-3, **NETWORK}
QUICKLY = "a smaller network that learns from Alice in Wonderland, in a minute"
NEXT = """Next: the same with --resume --steps 10000, with --attention softmax, or with a --text FILE of your own;
without --quick, a larger network reads film reviews."""

Characters = NDArray[np.int64]


class Corpus(NamedTuple):
    """A text as numbers of characters."""

    alphabet: str  # the most frequent first
    training: Characters
    validation: Characters
    name: str
    sha256: str


class Shape(NamedTuple):
    """How large the network is, and what it reads at a time."""

    width: int = 128
    hidden: int = 512
    heads: int = 4
    layers: int = 3
    length: int = 128
    batch: int = 16


def corpus(text: Text) -> Corpus:
    """All documents one after the other, with an empty line between."""
    joined = "\n\n".join(text.documents)
    counts = Counter(joined)  # an array of characters would lose NUL
    alphabet = "".join(sorted(counts, key=lambda character: (-counts[character], character))[:ALPHABET])
    number = {character: i for i, character in enumerate(alphabet)}
    numbers = np.array([number.get(character, len(alphabet) - 1) for character in joined])
    cut = len(numbers) - len(numbers) // VALIDATION
    return Corpus(alphabet, numbers[:cut], numbers[cut:], text.name, text.sha256)


def windows(numbers: Characters, length: int, starts: Characters) -> Characters:
    """``length + 1`` characters from each start on: what is read, and what is to be predicted."""
    return numbers[starts[:, None] + np.arange(length + 1)]


def task(found: Corpus, model: Model, shape: Shape) -> loop.Task:
    """Cross-entropy of the next character."""
    for name, part in (("training", found.training), ("validation", found.validation)):
        if len(part) <= shape.length:
            raise ValueError(f"text: {len(part)} characters of it are for {name}, more than {shape.length} are needed")
    last = len(found.training) - shape.length

    def batch(rng: np.random.Generator) -> Characters:
        return windows(found.training, shape.length, rng.integers(last, size=shape.batch))

    def learn(params: Params, read: Characters, share: float) -> tuple[float, Params]:
        scores, saved = causal.forward(read[:, :-1], params, model)
        loss, surprise = cross_entropy.forward(scores, read[:, 1:], kernels=jit)
        return share * float(loss), causal.backward(cross_entropy.backward(share, surprise).scores, saved).params

    read = held_out(found, shape)

    def evaluate(params: Params) -> dict[str, float]:
        scores, _ = causal.forward(read[:, :-1], params, model)
        return {"loss": float(cross_entropy.forward(scores, read[:, 1:])[0])}

    def look(params: Params, read: Characters) -> causal.Saved:
        return causal.forward(read[:, :-1], params, model)[1]

    return loop.Task(learn, batch, evaluate, look)


def held_out(found: Corpus, shape: Shape) -> Characters:
    """What is read of the validation text."""
    starts = np.arange(0, len(found.validation) - shape.length, shape.length)[: 4 * shape.batch]
    return windows(found.validation, shape.length, starts)


def yardsticks(found: Corpus, shape: Shape) -> dict[str, float]:
    """The loss there without a network, by counts of pairs in the training text, each plus one."""
    size = len(found.alphabet)
    pairs = np.ones((size, size))
    np.add.at(pairs, (found.training[:-1], found.training[1:]), 1)
    single = pairs.sum(axis=0) / pairs.sum()
    following = pairs / pairs.sum(axis=1, keepdims=True)
    read = held_out(found, shape)
    return {
        "characters alone": float(-np.log(single[read[:, 1:]]).mean()),
        "pairs of characters": float(-np.log(following[read[:, :-1], read[:, 1:]]).mean()),
    }


def begin(
    *,
    text: TextFile = None,
    attention: Annotated[str, Option(choices=MECHANISMS)] = "linear",
    peak: Peak = 4e-3,
    steps: int = 1000,
    seed: int = 0,
    shape: Shape = Shape(),  # noqa: B008  # a constant
) -> Ready:
    """Make it ready for `learn.run`.

    Parameters
    ----------
    text : Path, optional
        UTF-8; film reviews, fetched once, unless given.
    attention : {"linear", "softmax"}
    peak : float
        The highest learning rate.
    steps, seed : int
    shape : Shape
    """
    check_choice("attention", attention, MECHANISMS)
    check(shape, peak)
    found = corpus(read_reviews(fetch.open_content(fetch.REVIEWS)) if text is None else read_text(text))
    half = shape.width // 2
    sinusoids = positions.sinusoidal(shape.length, half, dtype=np.float32)
    model = Model(mechanism.of(MECHANISMS[attention], causal=True, kernels=jit), shape.heads, sinusoids=sinusoids)
    learned = task(found, model, shape)
    drawn = {"tokens": len(found.alphabet), "places": shape.length, "sinusoids": half}
    start = causal.draw(np.random.default_rng(seed), **drawn, **sizes(shape))
    start.embedding.table[...] *= SPREAD / 0.02
    falling = partial(schedule.cosine, peak=peak, steps=steps)
    how = settings(steps, seed, falling, radam, every=max(1, min(100, steps // 4)))
    facts: dict[str, Any] = {
        "attention": attention,
        "peak": peak,
        "shape": shape._asdict(),
        "text": {"name": found.name, "sha256": found.sha256, "characters": len(found.training)},
        "yardsticks": yardsticks(found, shape),
    }

    def said(run: Run, params: Params) -> Iterator[str]:
        for what, loss in facts["yardsticks"].items():
            yield f"{what}: {loss:.3f} nats per character"
        loss, training = (run.curves[name][-1] for name in ("loss", "training_loss"))
        yield f"after {run.steps[-1]} steps: {loss:.3f} (training {training:.3f})"
        yield f"\n{write(params, model, found, seed=seed)}\n"
        yield NEXT

    return Ready(learned, start, how, facts, said)


def write(params: Params, model: Model, found: Corpus, *, seed: int = 0) -> str:
    """What the network writes after an empty line, as a recurrent network: as many characters as it has places."""
    first = np.array([[max(found.alphabet.find("\n"), 0)]])
    count = causal.places(params, model)
    written = generate(first, count, params, model, rng=np.random.default_rng(seed), temperature=0.8)
    return "".join(found.alphabet[i] for i in written[0, 1:])
