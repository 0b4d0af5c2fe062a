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

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.attention.softmax import softmax
from linattn_ref.data import recordings
from linattn_ref.data import speech as speech_data
from linattn_ref.data.speech import SPEAKERS, Corpus
from linattn_ref.experiments.learning import causal_attention
from linattn_ref.experiments.learning.learn import Ready, check, result, settings, sizes
from linattn_ref.experiments.learning.options import Heads, Option
from linattn_ref.experiments.learning.runs import Run
from linattn_ref.experiments.learning.speech_frames import Sorted, in_order, left_out, steps_per_epoch
from linattn_ref.kernels import jit
from linattn_ref.models import speech, speech_lstm
from linattn_ref.nn import ctc, ctc_decoding
from linattn_ref.nn.dropout import check_options
from linattn_ref.nn.mechanism import Mechanism
from linattn_ref.op import Array
from linattn_ref.op.options import check_choice
from linattn_ref.telling import Say
from linattn_ref.training import adam, loop, radam, schedule

__all__ = ["NAMES", "QUICK", "Batch", "Shape", "batch_of", "batches", "begin", "draw", "inside_of", "learn"]
__all__ += ["measured", "read", "scores_of", "task", "utterance"]

NAMES = ("lstm", "softmax", "linear", "lsh-4", "lsh-1")
QUICK = {"width": 16, "hidden": 32, "heads": 2, "layers": 1, "frames": 400, "lstms": 1, "cut": 2}
PATIENCE = 3  # evaluations
BEAM = 8  # prefixes
LEAST = 20  # phonemes of the utterance that is looked at
SEEN = 0.05  # a symbol that is nowhere as likely is left out
SOUNDS = "recordings, as TIMIT or LibriSpeech has them (default: synthesised)"


class Shape(NamedTuple):
    """How large the network is, and what it hears at a time."""

    width: Annotated[int, Option("and the units of an LSTM in each direction", "E", 2)] = 128
    hidden: int = 512
    heads: Heads = 4
    layers: Annotated[int, Option("of a transformer", "L")] = 4
    frames: Annotated[int, Option("frames per step, as they are heard", "T")] = 1600
    lstms: int = 3


class Batch(NamedTuple):
    """Utterances of about the same length."""

    frames: Array  # (B, T, F), stacked
    lengths: NDArray[np.int64]  # (B,)
    labels: NDArray[np.int64]  # (B, S)
    counts: NDArray[np.int64]  # (B,)
    inside: Mechanism | None  # None: LSTMs
    dropout: float = 0.0
    seed: int | None = None  # of what is left out


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
    width = shape.width // shape.heads
    return None if name == "lstm" else causal_attention.draw(name, rng, width=width, length=length, causal=False)


def draw(name: str, shape: Shape, inputs: int, labels: int, rng: np.random.Generator) -> Any:
    """Parameters to start from: `speech.Params` or `speech_lstm.Params`."""
    check_choice("attention", name, NAMES)
    ends = {"inputs": inputs, "labels": labels}
    if name == "lstm":
        return speech_lstm.draw(rng, hidden=shape.width, layers=shape.lstms, dtype=np.float32, **ends)
    return speech.draw(rng, reads=causal_attention.reads(name), **ends, **sizes(shape))


def scores_of(params: Any, given: Batch, shape: Shape) -> tuple[Array, Any]:
    """What the network says of each frame, ``(B, T, V)``, and what it saves."""
    rng = None if given.seed is None else np.random.default_rng(given.seed)
    options = {"lengths": given.lengths, "rng": rng}
    if given.inside is None:
        return speech_lstm.forward(given.frames, params, dropout=given.dropout, kernels=jit, **options)
    model = speech.Model(given.inside, shape.heads, dropout=given.dropout)
    return speech.forward(given.frames, params, model, **options)


def learn(params: Any, given: Batch, share: float, shape: Shape) -> tuple[float, Any]:
    """Return the loss of a batch times ``share``, and its gradient."""
    scores, saved = scores_of(params, given, shape)
    loss, surprise = ctc.forward(scores, given.labels, frames=given.lengths, lengths=given.counts, kernels=jit)
    network = speech_lstm if given.inside is None else speech
    return share * float(loss), network.backward(ctc.backward(share, surprise).scores, saved).params


def task(name: str, shape: Shape, training: Sorted, watched: Sorted, dropout: float = 0.0) -> loop.Task:
    """CTC's loss in nats per phoneme."""

    def batch(rng: np.random.Generator) -> Batch:
        rows = training.rows(int(rng.integers(len(training.stacked))), shape.frames)
        stacked, labels = training.stacked[rows], training.labels[rows]
        given = batch_of(stacked, labels, inside_of(name, shape, max(map(len, stacked)), rng))
        return given._replace(dropout=dropout, seed=int(rng.integers(2**63))) if dropout else given

    def evaluate(params: Any) -> dict[str, float]:
        loss, greedy = 0.0, []
        for given in batches(name, shape, watched):
            scores, _ = scores_of(params, given, shape)
            each, _ = ctc.forward(scores, given.labels, frames=given.lengths, lengths=given.counts, kernels=jit)
            loss += len(given.counts) * float(each)
            greedy += ctc_decoding.greedy(scores, frames=given.lengths)
        error = ctc_decoding.error_rate(greedy, [labels.tolist() for labels in watched.labels])
        return {"loss": loss / len(watched.labels), "error_rate": error}

    return loop.Task(partial(learn, shape=shape), batch, evaluate)


def batches(name: str, shape: Shape, found: Sorted) -> Iterable[Batch]:
    """All utterances in order; what is random is drawn from a seed of its own, the same each time."""
    rng, first = np.random.default_rng(2020), 0
    while first < len(found.stacked):
        rows = found.rows(first, 2 * shape.frames)
        length = len(found.stacked[rows.stop - 1])
        yield batch_of(found.stacked[rows], found.labels[rows], inside_of(name, shape, length, rng))
        first = rows.stop


# --- What it makes of the test part -----------------------------------------------------------------------------------


def measured(params: Any, attention: str, shape: Shape, corpus: Corpus, stacking: bool = True) -> dict[str, Any]:
    """Shares of phonemes that are wrong, by the likeliest path and by a beam, and an utterance to look at.

    Of synthesised speech neither voice nor sentence was met before.
    """
    found, greedy, beam = in_order(corpus.parts["test"], stacking), [], []
    for given in batches(attention, shape, found):
        scores, _ = scores_of(params, given, shape)
        greedy += ctc_decoding.greedy(scores, frames=given.lengths)
        beam += [each[0].labels for each in ctc_decoding.prefix_beam(scores, width=BEAM, frames=given.lengths)]
    meant = [labels.tolist() for labels in found.labels]
    rates = {"greedy": ctc_decoding.error_rate(greedy, meant), "beam": ctc_decoding.error_rate(beam, meant)}
    sizes = {"width": BEAM, "utterances": len(meant), "phonemes": sum(map(len, meant))}
    return {"corpus": corpus.name, **rates, **sizes, "utterance": utterance(params, attention, shape, found, corpus)}


def utterance(params: Any, attention: str, shape: Shape, found: Sorted, corpus: Corpus) -> dict[str, Any]:
    """The shortest utterance of twenty phonemes, or the longest: what it is, and what is said of each frame."""
    row = next((i for i, labels in enumerate(found.labels) if len(labels) >= LEAST), len(found.labels) - 1)
    one = Sorted([found.stacked[row]], [found.labels[row]], found.ends[:1], [found.order[row]])
    (given,) = batches(attention, shape, one)
    scores, _ = scores_of(params, given, shape)
    likely, part = softmax(scores[0].astype(np.float64)), corpus.parts["test"]
    shown = [0, *(np.flatnonzero(likely[:, 1:].max(axis=0) > SEEN) + 1).tolist()]
    number = found.order[row]
    return {
        "text": part.texts[number],
        "speaker": part.speakers[number],
        "symbols": [corpus.symbols[i] for i in found.labels[row]],
        "starts": [round(float(start), 3) for start in part.starts[number]],
        "features": np.rint(10 * part.features[number].astype(float)).astype(int).tolist(),  # (T, 40), tenths
        "likely": {corpus.symbols[i]: likely[:, i].round(3).tolist() for i in shown},  # (T,) each, stacked (T / 3,)
        "said": [corpus.symbols[i] for i in ctc_decoding.greedy(scores)[0]],
    }


# --- A run ------------------------------------------------------------------------------------------------------------


def begin(
    *,
    data: Annotated[Path | Corpus | None, Option(SOUNDS, "DIR")] = None,
    attention: Annotated[str, Option(choices=NAMES)] = "linear",
    steps: int = 10_000,
    peak: Annotated[float, Option("the first, and highest, learning rate", "RATE")] = 2e-3,
    dropout: Annotated[float, Option("the probability that a number is left out", "P")] = 0.0,
    joined: Annotated[int, Option("sentences per synthesised utterance", "S")] = 1,
    unstacked: Annotated[bool, Option("hear each frame of 10 ms alone, not seven every 30 ms")] = False,
    seed: int = 0,
    shape: Shape = Shape(),  # noqa: B008  # a constant
    cut: int | None = None,
) -> Ready:
    """Make it ready for `learn.run`; the result is what is :func:`measured`.

    Parameters
    ----------
    data : Path or Corpus, optional
        Recordings, see `linattn_ref.data.recordings`; synthesised, unless given.
    attention : str
        One of :data:`NAMES`; ``lstm`` has none.
    steps, peak, seed : int, float, int
        ``peak`` is the first learning rate, and the highest.
    dropout : float
        In training, as `models.speech` and `models.speech_lstm` have it.
    joined : int
        Sentences per synthesised utterance; what is 15 hours of speech with one is 66 with four, pauses and all.
    unstacked : bool
        Hear each frame of 10 ms alone, as in the paper: see `speech_frames`.
    shape : Shape
    cut : int, optional
        Synthesise so many speakers per part, with twice as many sentences each.
    """
    check(shape, peak)
    check_options(dropout, None, "dropout")
    notes: list[str] = []
    if data is not None and joined > 1:
        raise ValueError(f"joined: expected 1 for recordings, which are as long as they are, got {joined}")
    corpus, stacking = data if isinstance(data, Corpus) else read(data, cut, notes.append, joined), not unstacked
    for part, count in left_out(corpus, stacking).items():
        of = f"{count} of {len(corpus.parts[part].texts)} utterances for {part}"
        notes += [f"{of} have more {corpus.unit} than frames, and are left out"] * (count > 0)
    training, validation = (in_order(corpus.parts[part], stacking) for part in ("training", "validation"))
    rng, inputs = np.random.default_rng([seed, 0]), training.stacked[0].shape[1]
    first = draw(attention, shape, inputs, len(corpus.symbols), rng)
    optimiser = adam if attention == "lstm" else radam
    how = settings(steps, seed, lambda step: peak, optimiser, every=max(1, min(200, steps // 4)), factor=halved)
    facts = {
        "peak": peak,
        "patience": PATIENCE,
        "optimiser": optimiser.__name__.rpartition(".")[2],
        "attention": attention,
        "shape": shape._asdict(),
        "corpus": {"name": corpus.name, "sha256": corpus.sha256, "symbols": list(corpus.symbols)},
        "steps_per_epoch": steps_per_epoch(training, shape.frames),
        "frames": int(training.ends[-1]),
        "dropout": dropout,
        "joined": joined,
        "unstacked": unstacked,
    }

    def ended(params: Any) -> dict[str, str]:
        return result(**measured(params, attention, shape, corpus, stacking))

    def said(run: Run, params: Any) -> Iterator[str]:
        found = run.facts["result"]
        test = f"on {found['utterances']} test utterances ({corpus.name})"
        greedy = f"{found['greedy']:.1%} of the {corpus.unit} wrong by the likeliest path"
        yield f"{attention}, {run.after}, {test}: {greedy}, {found['beam']:.1%} by a beam of {found['width']}"

    return Ready(task(attention, shape, training, validation, dropout), first, how, facts, said, ended, tuple(notes))


def read(folder: Path | None, cut: int | None, say: Say, joined: int = 1) -> Corpus:
    """The recordings in a folder; or the synthesised corpus, or a small one like it."""
    from tqdm import tqdm

    bar = partial(tqdm, file=sys.stderr, disable=None)
    if folder is not None:
        return recordings.read(folder, say=say, progress=partial(bar, unit="sound"))
    small: dict[str, Any] = {} if cut is None else {"speakers": dict.fromkeys(SPEAKERS, cut), "each": 2 * cut}
    return speech_data.corpus(**small, joined=joined, progress=partial(bar, unit="voice"))


def halved(lines: Sequence[Mapping[str, Any]]) -> float:
    """The share of the first rate that is left after these evaluations."""
    return schedule.plateau([line["error_rate"] for line in lines], patience=PATIENCE)
