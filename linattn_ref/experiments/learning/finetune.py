"""A pretrained BERT learns to tell praise from blame: ``linattn-ref train finetune``.

The network reads a review, the mean of its last rows goes through one affine layer, and all parameters learn. Any
mechanism can stand in all its layers in place of softmax attention, with the projections that were trained for that;
Linformer's ``E`` and ``F`` begin as mean pooling, or fitted to the network's own attention (`finetune_fit`). With
``--start``, it goes on from a network that has learned the same task with softmax attention, and what that knows before
any further training is measured too.

References
----------
Wang et al. (2020), "Linformer: self-attention with linear complexity", section 5.2.
Devlin et al. (2019), "BERT: pre-training of deep bidirectional transformers for language understanding", section 4.1.
Wilson (1927), "Probable inference, the law of succession, and statistical inference" (the interval).
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.attention import softmax
from linattn_ref.data import fetch, splits, subwords
from linattn_ref.experiments.learning import encoder_attention
from linattn_ref.experiments.learning.encoder_attention import Price, Setting, Shared
from linattn_ref.experiments.learning.learn import Ready, rate, result, settings
from linattn_ref.experiments.learning.options import Option, Peak
from linattn_ref.experiments.learning.runs import Run, kept_weights
from linattn_ref.kernels import jit
from linattn_ref.models import bert, classifier, encoder
from linattn_ref.models.classifier import Params
from linattn_ref.models.encoder import Model
from linattn_ref.nn import cross_entropy, mechanism
from linattn_ref.op import Array
from linattn_ref.training import loop, parameters
from linattn_ref.training.checks import check_peak
from linattn_ref.training.folder import BEST

__all__ = ["QUICK", "Examples", "Shape", "begin", "interval", "learn", "task"]

ROWS = 16  # texts that an evaluation reads at a time
QUICK = {"length": 32, "batch": 4, "examples": 64, "watched": 32, "tested": 32, "k": 0}
TEXTS = "CSV of text, label, source (default: film reviews, fetched once)"
START = "go on from what a run with softmax attention has learned"


class Shape(NamedTuple):
    """What is read."""

    length: Annotated[int, Option("tokens per text", "N", 8)] = 128
    batch: Annotated[int, Option("texts per step", "B")] = 16
    examples: Annotated[int, Option("texts to learn from", "S")] = 8000
    watched: Annotated[int, Option("validation texts at each evaluation", "S")] = 100
    tested: Annotated[int, Option("test texts in the end", "S")] = 500


class Examples(NamedTuple):
    """Texts as numbers."""

    tokens: NDArray[np.int64]  # (S, N)
    key_mask: NDArray[np.bool_]  # (S, N)
    labels: NDArray[np.int64]  # (S,)


def examples(found: splits.Labelled, tokenizer: Any, length: int, count: int) -> Examples:
    """``count`` of the texts, or all; the same ones each time."""
    chosen = np.random.default_rng(0).permutation(len(found.texts))[:count]
    tokens, key_mask = subwords.pad([found.texts[i] for i in chosen], tokenizer, length)
    return Examples(tokens, key_mask, found.labels[chosen])


def learn(params: Params, given: Examples, share: float, model: Model) -> tuple[float, Params]:
    """Return the loss of a batch of texts times ``share``, and its gradient."""
    scores, saved = classifier.forward(given.tokens, params, model, key_mask=given.key_mask)
    loss, surprise = cross_entropy.forward(scores, given.labels, kernels=jit)
    return share * float(loss), classifier.backward(cross_entropy.backward(share, surprise).scores, saved).params


def scores_of(params: Params, given: Examples, model: Model) -> Array:
    """``(S, classes)``."""
    found = []
    for i in range(0, len(given.labels), ROWS):
        tokens, key_mask = given.tokens[i : i + ROWS], given.key_mask[i : i + ROWS]
        found.append(classifier.forward(tokens, params, model, key_mask=key_mask)[0])
    return np.concatenate(found)


def task(training: Examples, validation: Examples, model: Model, batch: int) -> loop.Task:
    """Cross-entropy of the labels."""

    def draw(rng: np.random.Generator) -> Examples:
        chosen = rng.choice(len(training.labels), batch, replace=False)
        return Examples(training.tokens[chosen], training.key_mask[chosen], training.labels[chosen])

    def evaluate(params: Params) -> dict[str, float]:
        scores = scores_of(params, validation, model)
        right = (scores.argmax(axis=-1) == validation.labels).mean()
        return {"loss": float(cross_entropy.forward(scores, validation.labels)[0]), "accuracy": float(right)}

    return loop.Task(partial(learn, model=model), draw, evaluate)


def interval(right: int, count: int) -> tuple[float, float]:
    """Wilson's interval of 95 % for a share of which ``right`` of ``count`` were seen."""
    from scipy.stats import binomtest  # here: --help does not need it

    low, high = binomtest(right, count).proportion_ci(method="wilson")
    return float(low), float(high)


def tested(params: Params, given: Examples, model: Model) -> dict[str, Any]:
    """Accuracy on ``given``, and for each text 1 where it is right, for a paired test."""
    right = scores_of(params, given, model).argmax(axis=-1) == given.labels
    count, each = int(right.sum()), "".join(map(str, right.astype(int)))
    return {"accuracy": count / len(right), "interval": interval(count, len(right)), "right": each}


def begin(
    *,
    model: Annotated[Path | None, Option("a BERT or RoBERTa (default: all-MiniLM-L6-v2, fetched once)", "DIR")] = None,
    data: Annotated[Path | None, Option(TEXTS, "FILE")] = None,
    source: Annotated[str, Option("of the texts: imdb, rotten_tomatoes")] = "imdb",
    attention: Annotated[str, Option(choices=encoder_attention.NAMES)] = "softmax",
    k: Price = 64,
    sharing: Shared = "headwise",
    fitted: Annotated[bool, Option("linformer's E and F begin fitted to the network, not as mean pooling")] = False,
    start_from: Annotated[Path | None, Option(START, "DIR", word="--start")] = None,
    steps: int = 500,
    peak: Peak = 1e-4,
    seed: int = 0,
    shape: Shape = Shape(),  # noqa: B008  # a constant
) -> Ready:
    """Make it ready for `learn.run`.

    The result is accuracy on the test part after training, and with ``start_from`` before it; and the errors of mean
    pooling and of fitted projections.

    Parameters
    ----------
    model : Path, optional
        A checkpoint that `bert.load` reads; all-MiniLM-L6-v2, fetched once, unless given.
    data : Path, optional
        A file that `splits.read_labelled` reads; film reviews, fetched once, unless given.
    source : str
        Of the texts: "imdb" or "rotten_tomatoes".
    attention, k, sharing
        As in `encoder_attention`; a ``k`` of 0 is a quarter of the length.
    fitted : bool
        Whether Linformer's projections are fitted to the network, on texts of the training part, before it learns.
    start_from : Path, optional
        The folder of a run with softmax attention, whose best parameters are taken.
    steps, peak, seed : int, float, int
        ``peak`` is the highest learning rate.
    shape : Shape
    """
    if fitted and attention != "linformer":
        raise ValueError(f"fitted: linformer has projections to fit, got attention {attention!r}")
    check_peak(peak)
    pretrained = bert.load(fetch.open_content(fetch.MODEL) if model is None else model)
    config = pretrained.config
    if shape.length > config.max_tokens:
        raise ValueError(f"length: the model has positions for {config.max_tokens} tokens, got {shape.length}")
    k = encoder_attention.price(k, shape.length)
    setting = Setting(config.layers, config.heads, config.head_width, shape.length, k, sharing, pooled=True)
    inside = encoder_attention.make(attention, setting, np.random.default_rng([seed, 1]))
    found = splits.read_labelled(fetch.open_content(fetch.REVIEWS) if data is None else data, source)
    given = parts(found, pretrained.tokenizer, shape)
    how, below = bert.network(pretrained)
    exact = how._replace(mechanism=mechanism.of(softmax, kernels=jit), kernels=jit)
    how = exact._replace(mechanism=inside.mechanisms)
    params = classifier.draw(below, int(found.labels.max()) + 1, np.random.default_rng([seed, 0]))
    if start_from is not None:
        _, params = parameters.flatten(params)
        kept_weights(start_from / BEST, params)
    own, fit = inside.own, None
    if fitted:
        from linattn_ref.experiments.learning.finetune_fit import fit_projections  # it needs SciPy, --help does not

        texts, rng = given["training"], np.random.default_rng([seed, 2])
        found_fit = fit_projections(params.encoder, exact, texts.tokens, texts.key_mask, k=k, sharing=sharing, rng=rng)
        own, fit = found_fit.own, {"pooled": found_fit.pooled, "fitted": found_fit.fitted}
    params = params._replace(encoder=encoder.refit(params.encoder, inside.reads, own))
    rising, decay = partial(rate, peak=peak, steps=steps), {"weight_decay": 0.01, "decoupled": True}
    how_learned = settings(steps, seed, rising, every=min(steps, 100), options=decay)
    counts = {str(part): len(x.labels) for part, x in given.items()}
    facts = {
        "peak": peak,
        **encoder_attention.told(attention, setting),
        "fitted": fitted,
        "shape": shape._asdict(),
        "model": pretrained.sha256,
        "data": {"source": found.name, "sha256": found.sha256, **counts},
        "start": None if start_from is None else fetch.file_sha256(start_from / BEST),
    }
    before = None if start_from is None else tested(params, given["test"], how)

    def ended(params: Params) -> dict[str, str]:
        after, texts = tested(params, given["test"], how), len(given["test"].labels)
        return result(before=before, after=after, texts=texts, fit=fit)

    def said(run: Run, params: Params) -> Iterator[str]:
        measured = run.facts["result"]
        for when in ("before", "after"):
            if of := measured[when]:
                low, high = of["interval"]
                told = f"{of['accuracy']:.1%} of {measured['texts']} test texts ({low:.1%} to {high:.1%})"
                yield f"{when} training: {told}"

    learned = task(given["training"], given["validation"], how, shape.batch)
    return Ready(learned, params, how_learned, facts, said, ended)


def parts(found: splits.Labelled, tokenizer: Any, shape: Shape) -> dict[splits.Part, Examples]:
    """What each part of the texts is used for, as numbers."""
    counts: dict[splits.Part, int] = {"training": shape.examples, "validation": shape.watched, "test": shape.tested}
    texts, given = splits.split(found), {}
    for part, count in counts.items():
        least, there = shape.batch if part == "training" else 1, min(count, len(texts[part].texts))
        if there < least:
            raise ValueError(f"data: {there} texts are for {part}, at least {least} are needed")
        given[part] = examples(texts[part], tokenizer, shape.length, count)
    return given
