"""A pretrained BERT learns to tell praise from blame: ``linattn-ref train finetune``.

The network reads a review, the mean of its last rows goes through one affine layer, and all parameters learn. Any
mechanism can stand in all its layers in place of softmax attention, with the projections that were trained for that;
Linformer's ``E`` and ``F`` begin as mean pooling, or fitted to the network's own attention (`finetune_fit`). With
``start``, it goes on from a network that has learned the same task with softmax attention, and what that knows before
any further training is measured too.

References
----------
Wang et al. (2020), "Linformer: self-attention with linear complexity", section 5.2.
Devlin et al. (2019), "BERT: pre-training of deep bidirectional transformers for language understanding", section 4.1.
Wilson (1927), "Probable inference, the law of succession, and statistical inference" (the interval).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.atomic import write_all
from linattn_ref.attention import softmax
from linattn_ref.attention.arguments import Array
from linattn_ref.attention.linformer_projections import Sharing
from linattn_ref.data import fetch, splits, subwords
from linattn_ref.experiments.learning import encoder_attention, runs
from linattn_ref.experiments.learning.finetune_fit import fit_projections
from linattn_ref.experiments.learning.mlm import rate
from linattn_ref.kernels import jit
from linattn_ref.models import bert, classifier, encoder
from linattn_ref.models.classifier import Params
from linattn_ref.models.encoder import Model
from linattn_ref.nn import cross_entropy, mechanism
from linattn_ref.training import adam, checkpoint, loop, parameters
from linattn_ref.training.checks import check_peak

__all__ = ["Examples", "Shape", "interval", "learn", "run", "task"]

ROWS = 16  # texts that an evaluation reads at a time


class Shape(NamedTuple):
    """What is read."""

    length: int = 128  # tokens a text
    batch: int = 16  # texts a step
    examples: int = 8000  # texts of the training part
    watched: int = 100  # texts of the validation part, at each evaluation
    tested: int = 500  # texts of the test part, at the end


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
    d_scores = cross_entropy.backward(share, surprise).scores
    return share * float(loss), classifier.backward(d_scores, saved).params


def scores_of(params: Params, given: Examples, model: Model) -> Array:
    """``(S, classes)``."""
    parts = []
    for i in range(0, len(given.labels), ROWS):
        tokens, key_mask = given.tokens[i : i + ROWS], given.key_mask[i : i + ROWS]
        parts.append(classifier.forward(tokens, params, model, key_mask=key_mask)[0])
    return np.concatenate(parts)


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


def interval(right: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of 95 % for a share of which ``right`` of ``count`` were seen."""
    p, spread = right / count, z * z / count
    centre, half = p + spread / 2, z * math.sqrt(p * (1 - p) / count + spread / (4 * count))
    return (centre - half) / (1 + spread), (centre + half) / (1 + spread)


def tested(params: Params, given: Examples, model: Model) -> dict[str, Any]:
    """Accuracy on ``given``."""
    right = int((scores_of(params, given, model).argmax(axis=-1) == given.labels).sum())
    return {"accuracy": right / len(given.labels), "interval": interval(right, len(given.labels))}


def run(
    out: Path,
    *,
    model: Path | None = None,
    data: Path | None = None,
    source: str = "imdb",
    attention: str = "softmax",
    k: int = 64,
    sharing: Sharing = "headwise",
    fitted: bool = False,
    start: Path | None = None,
    steps: int = 500,
    peak: float = 1e-4,
    seed: int = 0,
    shape: Shape = Shape(),  # noqa: B008  # a constant
    resume: bool = False,
    command: str = "",
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> dict[str, Any]:
    """Train in the folder ``out``, or go on, and test; see `linattn_ref.training.loop.run`.

    Parameters
    ----------
    out : Path
    model : Path, optional
        A checkpoint that `bert.load` reads; all-MiniLM-L6-v2, fetched once, unless given.
    data : Path, optional
        A file that `splits.read_labelled` reads; film reviews, fetched once, unless given.
    source : str
        Of the texts: "imdb" or "rotten_tomatoes".
    attention, k, sharing
        As in `encoder_attention`.
    fitted : bool
        Whether Linformer's projections are fitted to the network, on texts of the training part, before it learns.
    start : Path, optional
        The folder of a run with softmax attention, whose best parameters are taken.
    steps, peak, seed : int, float, int
        ``peak`` is the highest learning rate.
    shape : Shape
    resume : bool
    command : str
        For the record.
    progress : callable
        ``tqdm.tqdm``, say.

    Returns
    -------
    dict
        What is written to `loop.RESULT`: accuracy on the test part after training, and with ``start`` before it; the
        errors of mean pooling and of fitted projections.
    """
    if fitted and attention != "linformer":
        raise ValueError(f"fitted: linformer has projections to fit, got attention {attention!r}")
    check_peak(peak)
    pretrained = bert.load(fetch.open_content(fetch.MODEL) if model is None else model)
    config = pretrained.config
    if shape.length > config.max_tokens:
        raise ValueError(f"length: the model has positions for {config.max_tokens} tokens, got {shape.length}")
    setting = encoder_attention.Setting(
        config.layers, config.heads, config.head_width, shape.length, k, sharing, pooled=True
    )
    inside = encoder_attention.make(attention, setting, np.random.default_rng([seed, 1]))
    found = splits.read_labelled(fetch.open_content(fetch.REVIEWS) if data is None else data, source)
    parts, classes = splits.split(found), int(found.labels.max()) + 1
    counts: dict[splits.Part, int] = {"training": shape.examples, "validation": shape.watched, "test": shape.tested}
    given = {}
    for part, count in counts.items():
        least = shape.batch if part == "training" else 1
        if len(parts[part].texts) < least:
            raise ValueError(f"data: {len(parts[part].texts)} texts are for {part}, at least {least} are needed")
        given[part] = examples(parts[part], pretrained.tokenizer, shape.length, count)
    how, below = bert.network(pretrained)
    exact = how._replace(mechanism=mechanism.of(softmax, kernels=jit), kernels=jit)
    how = exact._replace(mechanism=inside.mechanisms)
    params = classifier.draw(below, classes, np.random.default_rng([seed, 0]))
    if start is not None:
        _, params = parameters.flatten(params)
        checkpoint.restore(params, checkpoint.load(start / loop.BEST), "params")
    own, fit = inside.own, None
    if fitted:
        texts, rng = given["training"], np.random.default_rng([seed, 2])
        found_fit = fit_projections(params.encoder, exact, texts.tokens, texts.key_mask, k=k, sharing=sharing, rng=rng)
        own, fit = found_fit.own, {"pooled": found_fit.pooled, "fitted": found_fit.fitted}
    params = params._replace(encoder=encoder.refit(params.encoder, inside.reads, own))
    settings = loop.Settings(
        steps=steps,
        learning_rate=partial(rate, peak=peak, steps=steps),
        optimiser=adam,
        options={"kernels": jit, "weight_decay": 0.01, "decoupled": True},
        clip=1.0,
        every=min(steps, 100),
        seed=seed,
    )
    facts = runs.facts(
        command,
        seed,
        steps=steps,
        peak=peak,
        attention=attention,
        k=None if attention in encoder_attention.WITHOUT_K else k,
        sharing=sharing if attention == "linformer" else None,
        fitted=fitted,
        shape=shape._asdict(),
        model=pretrained.sha256,
        data={"source": found.name, "sha256": found.sha256, **{part: len(x.labels) for part, x in given.items()}},
        start=None if start is None else fetch.file_sha256(start / loop.BEST),
    )
    before = None if start is None else tested(params, given["test"], how)
    learned = task(given["training"], given["validation"], how, shape.batch)
    params = loop.run(learned, params, settings, out, facts=facts, resume=resume, progress=progress)
    after = tested(params, given["test"], how)
    result = {"before": before, "after": after, "texts": len(given["test"].labels), "fit": fit}
    write_all({out / loop.RESULT: lambda path: path.write_text(json.dumps(result) + "\n", encoding="utf-8")})
    return result
