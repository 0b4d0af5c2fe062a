"""Curves and an utterance, from a record of runs that were never run."""

import json

import numpy as np
import pytest

from linattn_ref.experiments.learned import speech_curves, speech_utterance
from linattn_ref.experiments.publishing import catalogue, style
from linattn_ref.experiments.publishing import record as saving


@pytest.fixture
def record(tmp_path):
    """Two networks, of which the second has two seeds."""
    path, runs = tmp_path / "speech.json", {}
    likely = {"": [0.9, 0.1, 0.9, 0.2], "a": [0.1, 0.9, 0.1, 0.1], "b": [0, 0, 0, 0.7]}
    for name, seed in (("lstm", 0), ("linear", 0), ("linear", 1)):
        heard = {"likely": likely, "said": ["a", "b"], "features": np.zeros((11, 40), int).tolist()}
        said = {"text": "a b", "speaker": "3 en-us+m7", "symbols": ["a", "c"], "starts": [0.0, 0.05]}
        rates = {"greedy": 0.5 + 0.1 * seed, "beam": 0.4, "utterances": 1, "phonemes": 2}
        facts = {"seed": seed, "steps": 20, "steps_per_epoch": 5, "frames": 1200, "corpus": {"name": "made up"}}
        runs[f"{name}-{seed}"] = {
            "facts": {**facts, "result": {**rates, "utterance": {**heard, **said}}},
            "steps": [10, 20],
            "cpu_seconds": [2.0, 4.0],
            "curves": {"error_rate": [1.0, 0.5]},
        }
    path.write_text(json.dumps(runs), encoding="utf-8")
    return path


def test_error_rates_and_epochs(record):
    results = speech_curves.compute(record=record)
    assert (results.epochs, results.hours, results.phonemes) == (4, 0.01, 2)
    assert speech_curves.table_rows(results) == [
        ("Bi-LSTM", "50.0", "40.0", "1"),
        ("linear", "50.0 and 60.0", "40.0 and 40.0", "1 and 1"),
    ]
    again = catalogue.results_of("speech_curves", {"results": saving.plain(results)})
    assert speech_curves.table_rows(again) == speech_curves.table_rows(results)


def test_frames_that_are_not_stacked_are_shorter(record):
    told = json.loads(record.read_text(encoding="utf-8"))
    for run in told.values():
        run["facts"]["unstacked"] = True
    record.write_text(json.dumps(told), encoding="utf-8")
    assert speech_curves.compute(record=record).hours == pytest.approx(0.01 / 3)


def test_drawn(record):
    with style.use("paper"):
        left, right = speech_curves.draw(speech_curves.compute(record=record)).axes
        assert len(left.lines) == len(right.lines) == 3
        assert "synthesised" in left.get_ylabel()
        utterance = speech_utterance.compute(record=record)
        top, *below = speech_utterance.draw(utterance).axes
    assert len(below) == 2
    assert "synthesised" in top.get_title(loc="left") + top.get_title()
    assert [text.get_text() for text in below[0].texts] == ["a", "b", "a b"]
    np.testing.assert_allclose(below[0].texts[1].get_position(), (0.09, 0.7))
