"""Masked language modelling, as the Linformer paper's Figure 3 has it, in small: ``linattn-ref train mlm``.

A bidirectional transformer reads windows of a text in which 15 % of the tokens are hidden, and is to say which stood
there. Of the hidden ones 80 % are replaced by ``[MASK]``, 10 % by a random token, 10 % by themselves. Its loss is
compared with those of counts: of single tokens, of pairs, and of pairs on both sides (`ngrams`).

The text is split for good (`linattn_ref.data.splits`), and its vocabulary is trained on the training part alone.

References
----------
Wang et al. (2020), "Linformer: self-attention with linear complexity", section 5.1.
Devlin et al. (2019), "BERT: pre-training of deep bidirectional transformers for language understanding", section 3.1.
"""

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.data import fetch, splits, subwords
from linattn_ref.data.text import read_text
from linattn_ref.experiments.learning import encoder_attention, ngrams
from linattn_ref.experiments.learning.encoder_attention import Price, Shared
from linattn_ref.experiments.learning.learn import Ready, check, rate, settings, sizes
from linattn_ref.experiments.learning.mlm_start import begun
from linattn_ref.experiments.learning.options import Heads, Inner, Layers, Option, Peak, TextFile, Width
from linattn_ref.experiments.learning.runs import Run
from linattn_ref.kernels import jit
from linattn_ref.models import encoder, masked_tokens
from linattn_ref.models.encoder import Model
from linattn_ref.models.masked_tokens import Params
from linattn_ref.nn import cross_entropy
from linattn_ref.op import Array
from linattn_ref.training import adam, loop, parameters
from linattn_ref.training.checks import check_rate

__all__ = ["QUICK", "Corpus", "Hidden", "OwnRate", "Shape", "begin", "corpus", "hide", "task"]

HIDDEN = 0.15  # of the tokens
TO_MASK, TO_RANDOM = 0.8, 0.1  # of the hidden ones
HELD_OUT = 65_536  # tokens of the validation part that are read at each evaluation, or as many as there are
TOKENIZER = "tokenizer.json"
RATIO = "of linformer's projections, times the others' (default: 1 / N)"
ADAM = {"betas": (0.9, 0.98), "weight_decay": 0.01, "decoupled": True}
K = 64  # mixtures, unless told otherwise
QUICK = {"width": 32, "hidden": 64, "heads": 2, "layers": 2, "length": 64, "tokens": 512, "vocabulary": 500, "k": 0}
QUICK |= {"cut": 300}  # texts

Tokens = NDArray[np.integer[Any]]


class Shape(NamedTuple):
    """How large the network is, and what it reads at a time."""

    width: Width = 128
    hidden: Inner = 512
    heads: Heads = 4
    layers: Layers = 4
    length: Annotated[int, Option("tokens per sequence", "N", 8)] = 512
    tokens: Annotated[int, Option("per step, in sequences of that length", "S", 8)] = 8192
    vocabulary: Annotated[int, Option("pieces of the vocabulary", "V", 260)] = 8000


class Corpus(NamedTuple):
    """A text as numbers of pieces."""

    training: Tokens  # (pieces,)
    validation: Tokens  # (pieces,)
    vocabulary: str  # its fingerprint
    name: str
    sha256: str
    tokenizer: bytes  # as JSON


class Hidden(NamedTuple):
    """Windows with tokens hidden in them."""

    read: Tokens  # (B, N)
    chosen: Tokens  # (places,), in read.ravel()
    targets: Tokens  # (places,)


def corpus(text: Path | None, shape: Shape, cut: int | None = None) -> Corpus:
    """All reviews of `linattn_ref.data.fetch`, or a text of one's own, whose documents are split in the same way."""
    if text is None:
        found = splits.read_labelled(fetch.open_content(fetch.REVIEWS))
    else:
        own = read_text(text)
        found = splits.Labelled(own.name, own.documents, np.zeros(len(own.documents), int), own.sha256)
    parts = splits.split(found)
    used: tuple[splits.Part, ...] = ("training", "validation")
    texts = {part: parts[part].texts[:cut] for part in used}
    for part, documents in texts.items():
        if not documents:
            raise ValueError(f"text: none of its {len(found.texts)} documents is for {part}, at least one is needed")
    tokenizer = subwords.train(texts["training"], shape.vocabulary)
    training, validation = (subwords.stream(texts[part], tokenizer) for part in used)
    for part, pieces in zip(used, (training, validation), strict=True):
        if len(pieces) < shape.length:
            raise ValueError(f"text: {len(pieces)} pieces of it are for {part}, one sequence has {shape.length}")
    fingerprint = subwords.fingerprint(tokenizer)
    return Corpus(training, validation, fingerprint, found.name, found.sha256, tokenizer.to_str().encode())


def hide(tokens: Tokens, rng: np.random.Generator, vocabulary: int) -> Hidden:
    """Hide 15 % of each window ``(B, N)``; separators are not hidden."""
    b, n = tokens.shape
    count = max(1, round(HIDDEN * n))
    order = np.where(tokens == subwords.SEP, 2.0, rng.random((b, n)))
    places = np.argpartition(order, count - 1, axis=-1)[:, :count]  # (B, count)
    chosen = np.sort((places + n * np.arange(b)[:, None]).ravel())
    targets = tokens.ravel()[chosen]
    chance, other = rng.random(chosen.size), rng.integers(len(subwords.SPECIAL), vocabulary, chosen.size)
    shown = np.where(chance < TO_MASK, subwords.MASK, np.where(chance < TO_MASK + TO_RANDOM, other, targets))
    read = tokens.astype(np.int64).ravel()
    read[chosen] = shown
    return Hidden(read.reshape(b, n), chosen, targets.astype(np.int64))


def held_out(found: Corpus, shape: Shape) -> list[Hidden]:
    """The same windows of the validation part, with the same tokens hidden, whatever the seed of the training."""
    count = min(HELD_OUT, len(found.validation)) // shape.length
    windows = found.validation[: count * shape.length].reshape(count, shape.length)
    rng = np.random.default_rng([2018, shape.length])
    rows = max(1, shape.tokens // shape.length)
    return [hide(windows[i : i + rows], rng, shape.vocabulary) for i in range(0, count, rows)]


def yardsticks(found: Corpus, shape: Shape) -> dict[str, float]:
    """The loss of counts at the places that the network is asked for; both neighbours are what the network reads."""
    pieces, start = np.append(subwords.SEP, found.validation), 0
    places: list[tuple[Tokens, ...]] = []
    for read, chosen, wanted in held_out(found, shape):
        seen = np.where(read == subwords.MASK, -1, read)
        known = np.pad(seen, ((0, 0), (1, 1)), constant_values=-1)  # (B, 1 + N + 1)
        row, column = np.divmod(chosen, shape.length)
        places.append((pieces[start + chosen], wanted, known[row, column], known[row, column + 2]))
        start += read.size
    before, targets, left, right = map(np.concatenate, zip(*places, strict=True))
    beside = ngrams.between(found.training, left, targets, right, shape.vocabulary)
    return {**ngrams.surprise(found.training, before, targets, shape.vocabulary), "both neighbours": beside}


def task(found: Corpus, model: Model, shape: Shape) -> loop.Task:
    """Cross-entropy of the hidden tokens."""
    last, rows = len(found.training) - shape.length + 1, max(1, shape.tokens // shape.length)

    def batch(rng: np.random.Generator) -> Hidden:
        starts = rng.integers(last, size=rows)
        return hide(found.training[starts[:, None] + np.arange(shape.length)], rng, shape.vocabulary)

    def learn(params: Params, given: Hidden, share: float) -> tuple[float, Params]:
        scores, saved = masked_tokens.forward(given.read, params, model, chosen=given.chosen)
        loss, surprise = cross_entropy.forward(scores, given.targets, kernels=jit)
        d_scores = cross_entropy.backward(share, surprise).scores
        return share * float(loss), masked_tokens.backward(d_scores, saved).params

    asked = held_out(found, shape)

    def evaluate(params: Params) -> dict[str, float]:
        """Of all hidden tokens, and of those alone that are shown as ``[MASK]``."""
        total, masked, right = np.zeros(2), np.zeros(2), 0
        for read, chosen, targets in asked:
            scores, _ = masked_tokens.forward(read, params, model, chosen=chosen)
            total += _sum(scores, targets)
            unseen = read.ravel()[chosen] == subwords.MASK
            if unseen.any():
                masked += _sum(scores[unseen], targets[unseen])
            right += int((scores.argmax(axis=-1) == targets).sum())
        return {"loss": total[0] / total[1], "masked": masked[0] / max(masked[1], 1.0), "accuracy": right / total[1]}

    return loop.Task(learn, batch, evaluate)


def _sum(scores: Array, targets: Tokens) -> Array:
    """The sum of cross-entropies, and their number, ``(2,)``."""
    return np.array([len(targets) * float(cross_entropy.forward(scores, targets, kernels=jit)[0]), len(targets)])


class OwnRate(NamedTuple):
    """Adam, with ``ratio`` times the rate of all else for Linformer's projections.

    A step of Adam moves each number by about the rate. A row of a projection is a sum over ``n`` tokens: moved by the
    rate, all in the gradient's sign, it changes ``n`` times as much, and with it what the layers above have learned.
    """

    ratio: float

    def init_state(self, params: Params) -> adam.State:
        return adam.init_state(params)

    def step(self, params: Params, grads: Params, state: adam.State, **options: Any) -> adam.State:
        before = [(array, array.copy()) for array in projections(params)]
        state = adam.step(params, grads, state, **options)
        for array, old in before:  # a step at a tenth of the rate is a tenth of the step
            array[...] = old + array.dtype.type(self.ratio) * (array - old)
        return state


def projections(params: Params) -> list[Array]:
    """Linformer's projections, each array once."""
    return [array for (array,) in parameters.together([block.attention.own for block in params.encoder.blocks])]


# --- A run ------------------------------------------------------------------------------------------------------------


def begin(
    *,
    text: TextFile = None,
    attention: Annotated[str, Option(choices=encoder_attention.NAMES)] = "softmax",
    k: Price = K,
    sharing: Shared = "headwise",
    pooled: Annotated[bool, Option("linformer's projections begin as mean pooling; drawn, otherwise")] = False,
    own_rate: Annotated[float | None, Option(RATIO, "R")] = None,
    drawn: Annotated[bool, Option("the network begins as drawn; its heads look beside, otherwise")] = False,
    steps: int = 2000,
    peak: Peak = 2e-3,
    seed: int = 0,
    shape: Shape = Shape(),  # noqa: B008  # a constant
    cut: int | None = None,
) -> Ready:
    """Make it ready for `learn.run`.

    Parameters
    ----------
    text : Path, optional
        UTF-8; film reviews, fetched once, unless given.
    attention, k, sharing, pooled
        As in `encoder_attention`; a ``k`` of 0 is a quarter of the length, and softmax and linear attention take none.
    own_rate : float, optional
        The learning rate of Linformer's projections, times the others': ``1 / n`` unless given, see `OwnRate`; with
        0 they stay what they were at the beginning.
    drawn : bool
        The network begins as it is drawn, not as `mlm_start` has it.
    steps, peak, seed : int, float, int
        ``peak`` is the highest learning rate.
    shape : Shape
    cut : int, optional
        Read so many texts of each part only.
    """
    check(shape, peak)
    if shape.width < 4 and not drawn:
        told = f"a width of {shape.width} cannot be halved into pairs, for places and for tokens"
        raise ValueError(f"shape: {told}; expected at least 4, unless the network begins as drawn")
    check_rate(own_rate=own_rate or 0.0)
    for name, asked in (("pooled", pooled), ("own_rate", own_rate is not None)):
        if asked and attention != "linformer":
            raise ValueError(f"{name}: linformer alone has projections, got attention {attention!r}")
    if attention in encoder_attention.WITHOUT_K and k not in (0, K):  # what it is where nobody asks
        raise ValueError(f"k (--k): {attention} attention has none, got {k}; leave it out")
    head_width, is_linformer = shape.width // shape.heads, attention == "linformer"
    k = encoder_attention.price(k, shape.length)
    setting = encoder_attention.Setting(shape.layers, shape.heads, head_width, shape.length, k, sharing, pooled)
    inside = encoder_attention.make(attention, setting, np.random.default_rng([seed, 1]))
    found = corpus(text, shape, cut)
    rng = np.random.default_rng([seed, 0])
    size = {"tokens": shape.vocabulary, "places": shape.length, **sizes(shape)}
    params = masked_tokens.draw(encoder.draw(rng, reads=inside.reads, own=inside.own, **size), rng)
    ratio = 1 / shape.length if own_rate is None else own_rate
    rising, every = partial(rate, peak=peak, steps=steps), max(1, steps // 20)
    how = settings(steps, seed, rising, OwnRate(ratio), every=every, options=ADAM)
    facts = {
        "peak": peak,
        **encoder_attention.told(attention, setting),
        "pooled": pooled if is_linformer else None,
        "own_rate": ratio if is_linformer else None,
        "drawn": drawn,
        "shape": shape._asdict(),
        "text": {"name": found.name, "sha256": found.sha256, "pieces": len(found.training)},
        "vocabulary": found.vocabulary,
        "yardsticks": yardsticks(found, shape),
    }

    def said(run: Run, params: Params) -> Iterator[str]:
        for what, loss in facts["yardsticks"].items():
            yield f"{what}: perplexity {math.exp(loss):.1f}"
        loss, right = run.curves["loss"][-1], run.curves["accuracy"][-1]
        yield f"{attention}, {run.after}: perplexity {math.exp(loss):.1f}, {right:.1%} of the hidden right"

    learned = task(found, Model(inside.mechanisms, shape.heads), shape)
    first = params if drawn else begun(params, shape.heads, rng)
    return Ready(learned, first, how, facts, said, lambda params: {TOKENIZER: found.tokenizer.decode()})
