"""What a network that was trained on speech makes of the test part: error rates, and one utterance to look at.

The test part's voices and sentences are neither in the training part nor in the one that was watched.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from linattn_ref.atomic import write_all
from linattn_ref.data.speech import Corpus
from linattn_ref.experiments.learning import speech, speech_frames
from linattn_ref.experiments.learning.speech import Shape
from linattn_ref.experiments.learning.speech_frames import Sorted
from linattn_ref.nn import ctc_decoding
from linattn_ref.op import Array
from linattn_ref.training.loop import RESULT

__all__ = ["error_rates", "probabilities", "utterance", "write"]

BEAM = 8  # prefixes
LEAST = 20  # phonemes of the utterance that is looked at
SEEN = 0.05  # a symbol that is nowhere as likely is left out


def write(out: Path, params: Any, attention: str, shape: Shape, corpus: Corpus) -> dict[str, Any]:
    """Both, also as ``result.json`` in the folder of the run."""
    found = speech_frames.in_order(corpus.parts["test"])
    result = {
        "corpus": corpus.name,
        **error_rates(params, attention, shape, found),
        "utterance": utterance(params, attention, shape, found, corpus),
    }
    text = json.dumps(result, ensure_ascii=False) + "\n"
    write_all({out / RESULT: lambda path: path.write_text(text, encoding="utf-8")})
    return result


def error_rates(params: Any, attention: str, shape: Shape, found: Sorted) -> dict[str, Any]:
    """Shares of phonemes that are wrong, by the likeliest path and by a beam."""
    greedy, beam = [], []
    for given in speech.batches(attention, shape, found):
        scores, _ = speech.scores_of(params, given, shape)
        greedy += ctc_decoding.greedy(scores, frames=given.lengths)
        beam += [each[0].labels for each in ctc_decoding.prefix_beam(scores, width=BEAM, frames=given.lengths)]
    meant = [labels.tolist() for labels in found.labels]
    rates = {"greedy": ctc_decoding.error_rate(greedy, meant), "beam": ctc_decoding.error_rate(beam, meant)}
    return {**rates, "width": BEAM, "utterances": len(meant), "phonemes": sum(map(len, meant))}


def utterance(params: Any, attention: str, shape: Shape, found: Sorted, corpus: Corpus) -> dict[str, Any]:
    """The shortest utterance of twenty phonemes, or the longest: what it is, and what is said of each frame."""
    row = next((i for i, labels in enumerate(found.labels) if len(labels) >= LEAST), len(found.labels) - 1)
    one = Sorted([found.stacked[row]], [found.labels[row]], found.ends[:1], [found.order[row]])
    (given,) = speech.batches(attention, shape, one)
    scores, _ = speech.scores_of(params, given, shape)
    likely, part = probabilities(scores[0]), corpus.parts["test"]
    shown = [0, *(np.flatnonzero(likely[:, 1:].max(axis=0) > SEEN) + 1).tolist()]
    number = found.order[row]
    return {
        "text": part.texts[number],
        "speaker": part.speakers[number],
        "symbols": [corpus.symbols[i] for i in found.labels[row]],
        "starts": [round(float(start), 3) for start in part.starts[number]],
        "features": np.rint(10 * part.features[number].astype(float)).astype(int).tolist(),  # (T, 40), tenths
        "likely": {corpus.symbols[i]: likely[:, i].round(3).tolist() for i in shown},  # (T / 3,) each
        "said": [corpus.symbols[i] for i in ctc_decoding.greedy(scores)[0]],
    }


def probabilities(scores: Array) -> Array:
    """``softmax`` of each row of scores ``(T, V)``."""
    y = np.exp(scores - scores.max(axis=-1, keepdims=True), dtype=np.float64)
    return y / y.sum(axis=-1, keepdims=True)
