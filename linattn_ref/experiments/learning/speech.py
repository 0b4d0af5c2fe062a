"""Networks learn which phonemes are said: ``linattn-ref train speech``.

A network hears an utterance as a filterbank, its frames stacked (`speech_frames`), and scores the blank and each
phoneme in every frame; it learns by CTC.

The speech is *synthesised* (`linattn_ref.data.speech`) unless a folder with recordings is given, and a network learns
for some 20 minutes of one core: error rates can be compared with one another, and not with the paper's. They are those
of utterances whose voices and sentences are not in the training part. As in the paper, transformers learn by RAdam and
LSTMs by Adam, at a rate that is halved when the error rate of the validation part has stopped falling (by how much that
of LSTMs is reduced, the paper does not say). That is looked at every 200 updates; three looks in a row that find no new
lowest one count as stopped.

References
----------
Katharopoulos et al. (2020), "Transformers are RNNs", section 4.3 and Table 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.attention import linear, reformer, softmax
from linattn_ref.attention.arguments import Array
from linattn_ref.data.speech import Corpus
from linattn_ref.experiments.learning import runs
from linattn_ref.experiments.learning.speech_frames import Sorted, in_order, left_out, steps_per_epoch
from linattn_ref.kernels import jit
from linattn_ref.models import speech, speech_lstm
from linattn_ref.nn import ctc, ctc_decoding, mechanism
from linattn_ref.nn.mechanism import Mechanism
from linattn_ref.training import adam, loop, radam, schedule
from linattn_ref.training.checks import check_peak

__all__ = ["NAMES", "Batch", "Shape", "batch_of", "batches", "draw", "run", "scores_of", "task"]

NAMES = ("lstm", "softmax", "linear", "lsh-4", "lsh-1")
CHUNK = 32  # of lsh, as in the authors' code
PATIENCE = 3  # evaluations


class Shape(NamedTuple):
    """How large the network is, and what it hears at a time."""

    width: int = 128  # and the units of an LSTM in each direction
    hidden: int = 512
    heads: int = 4
    layers: int = 4  # of a transformer; there are 3 LSTMs
    frames: int = 1600  # a step, stacked ones
    lstms: int = 3


class Batch(NamedTuple):
    """Utterances of about the same length."""

    frames: Array  # (B, T, F), stacked
    lengths: NDArray[np.int64]  # (B,)
    labels: NDArray[np.int64]  # (B, S)
    counts: NDArray[np.int64]  # (B,)
    inside: Mechanism | None  # None: LSTMs


# --- What is heard ----------------------------------------------------------------------------------------------------


def batch_of(stacked: Sequence[Array], labels: Sequence[NDArray[np.int64]], inside: Mechanism | None) -> Batch:
    """Utterances side by side, padded with 0."""
    lengths, counts = (np.array([len(each) for each in many]) for many in (stacked, labels))
    frames = np.zeros((len(stacked), lengths.max(), stacked[0].shape[1]), np.float32)
    meant = np.zeros((len(labels), max(1, counts.max())), np.int64)
    for row, (heard, said) in enumerate(zip(stacked, labels, strict=True)):
        frames[row, : len(heard)], meant[row, : len(said)] = heard, said
    return Batch(frames, lengths, meant, counts, inside)


# --- Who hears it -----------------------------------------------------------------------------------------------------


def inside_of(name: str, shape: Shape, length: int, rng: np.random.Generator) -> Mechanism | None:
    """The mechanism for utterances of ``length`` frames; Reformer's rotations are drawn."""
    if name == "lstm":
        return None
    if name in ("softmax", "linear"):
        return mechanism.of({"softmax": softmax, "linear": linear}[name], kernels=jit)
    buckets = max(2, 2 * round(length / CHUNK / 2))
    rotations = reformer.draw_rotations(int(name[4:]), shape.width // shape.heads, buckets, rng, np.float32)
    return mechanism.of(reformer, rotations=rotations, chunk=CHUNK, kernels=jit)


def draw(name: str, shape: Shape, inputs: int, labels: int, rng: np.random.Generator) -> Any:
    """Parameters to start from: `speech.Params` or `speech_lstm.Params`."""
    if name not in NAMES:
        raise ValueError(f"attention: expected one of {', '.join(NAMES)}, got {name!r}")
    sizes: dict[str, Any] = {"inputs": inputs, "labels": labels, "dtype": np.float32}
    if name == "lstm":
        return speech_lstm.draw(rng, hidden=shape.width, layers=shape.lstms, **sizes)
    reads = 2 if name.startswith("lsh") else 3
    return speech.draw(rng, width=shape.width, hidden=shape.hidden, layers=shape.layers, reads=reads, **sizes)


def scores_of(params: Any, given: Batch, shape: Shape) -> tuple[Array, Any]:
    """What the network says of each frame, ``(B, T, V)``, and what it saves."""
    if given.inside is None:
        return speech_lstm.forward(given.frames, params, lengths=given.lengths, kernels=jit)
    model = speech.Model(given.inside, shape.heads)
    return speech.forward(given.frames, params, model, lengths=given.lengths)


def task(name: str, shape: Shape, training: Sorted, watched: Sorted) -> loop.Task:
    """CTC's loss in nats a phoneme."""
    network = speech_lstm if name == "lstm" else speech

    def batch(rng: np.random.Generator) -> Batch:
        rows = training.rows(int(rng.integers(len(training.stacked))), shape.frames)
        stacked, labels = training.stacked[rows], training.labels[rows]
        return batch_of(stacked, labels, inside_of(name, shape, max(map(len, stacked)), rng))

    def learn(params: Any, given: Batch, share: float) -> tuple[float, Any]:
        scores, saved = scores_of(params, given, shape)
        loss, surprise = ctc.forward(scores, given.labels, frames=given.lengths, lengths=given.counts, kernels=jit)
        d_scores = ctc.backward(share, surprise).scores
        return share * float(loss), network.backward(d_scores, saved).params

    def evaluate(params: Any) -> dict[str, float]:
        loss, greedy = 0.0, []
        for given in batches(name, shape, watched):
            scores, _ = scores_of(params, given, shape)
            count = len(given.counts)
            each, _ = ctc.forward(scores, given.labels, frames=given.lengths, lengths=given.counts, kernels=jit)
            loss += count * float(each)
            greedy += ctc_decoding.greedy(scores, frames=given.lengths)
        error = ctc_decoding.error_rate(greedy, [labels.tolist() for labels in watched.labels])
        return {"loss": loss / len(watched.labels), "error_rate": error}

    return loop.Task(learn, batch, evaluate)


def batches(name: str, shape: Shape, found: Sorted) -> Iterable[Batch]:
    """All utterances in order; what is random is drawn from a seed of its own, the same each time."""
    rng, first = np.random.default_rng(2020), 0
    while first < len(found.stacked):
        rows = found.rows(first, 2 * shape.frames)
        length = len(found.stacked[rows.stop - 1])
        yield batch_of(found.stacked[rows], found.labels[rows], inside_of(name, shape, length, rng))
        first = rows.stop


# --- A run ------------------------------------------------------------------------------------------------------------


def run(
    out: Path,
    corpus: Corpus,
    *,
    attention: str = "linear",
    steps: int = 10_000,
    peak: float = 2e-3,
    seed: int = 0,
    shape: Shape = Shape(),  # noqa: B008  # a constant
    resume: bool = False,
    command: str = "",
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Any:
    """Train in the folder ``out``, or go on; see `linattn_ref.training.loop.run`.

    Parameters
    ----------
    out : Path
    corpus : Corpus
        Of `linattn_ref.data.speech`, synthesised, or of `linattn_ref.data.recordings`.
    attention : str
        One of :data:`NAMES`; ``lstm`` has none.
    steps, peak, seed : int, float, int
        ``peak`` is the first learning rate, and the highest.
    shape : Shape
    resume : bool
    command : str
        For the record.
    progress : callable
        ``tqdm.tqdm``, say.
    """
    if shape.width % shape.heads:
        raise ValueError(f"shape: a width of {shape.width} cannot be cut into {shape.heads} heads")
    check_peak(peak)
    left_out(corpus)
    training, validation = (in_order(corpus.parts[part]) for part in ("training", "validation"))
    rng, inputs = np.random.default_rng([seed, 0]), training.stacked[0].shape[1]
    first = draw(attention, shape, inputs, len(corpus.symbols), rng)
    optimiser = adam if attention == "lstm" else radam
    settings = loop.Settings(
        steps=steps,
        learning_rate=lambda step: peak,
        factor=halved,
        optimiser=optimiser,
        options={"kernels": jit},
        clip=1.0,
        every=max(1, min(200, steps // 4)),
        seed=seed,
    )
    facts = runs.facts(
        command,
        seed,
        steps=steps,
        peak=peak,
        patience=PATIENCE,
        optimiser=optimiser.__name__.rpartition(".")[2],
        attention=attention,
        shape=shape._asdict(),
        corpus={"name": corpus.name, "sha256": corpus.sha256, "symbols": list(corpus.symbols)},
        steps_per_epoch=steps_per_epoch(training, shape.frames),
        frames=int(training.ends[-1]),
    )
    learned = task(attention, shape, training, validation)
    return loop.run(learned, first, settings, out, facts=facts, resume=resume, progress=progress)


def halved(lines: Sequence[Mapping[str, Any]]) -> float:
    """The share of the first rate that is left after these evaluations."""
    return schedule.plateau([line["error_rate"] for line in lines], patience=PATIENCE)
