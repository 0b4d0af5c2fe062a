"""The learning rates that the tasks ask for: where they begin, turn and end. Nothing is trained."""

import numpy as np
import pytest

from linattn_ref.data import recordings as sounds
from linattn_ref.experiments.learning import characters, finetune, mlm, speech
from linattn_ref.training import clip, loop

STEPS = 200


class Asked(Exception):
    """What a task asked the loop for."""


@pytest.fixture
def asked(monkeypatch):
    """The settings with which a call would train."""

    def refuse(task, params, settings, *args, **options):
        raise Asked(settings)

    monkeypatch.setattr(loop, "run", refuse)

    def settings(run, *args, **options):
        with pytest.raises(Asked) as found:
            run(*args, steps=STEPS, **options)
        return found.value.args[0]

    return settings


def check_up_and_down(settings, peak, warm):
    """Evenly up to the peak, then half a cosine to nothing."""
    rates = np.array([settings.learning_rate(t) for t in range(STEPS + 1)])
    falling = peak * (1 + np.cos(np.pi * np.arange(STEPS + 1) / STEPS)) / 2
    rising = np.minimum(1.0, np.arange(1, STEPS + 2) / warm)
    np.testing.assert_allclose(rates, rising * falling, rtol=1e-12, atol=1e-18)
    assert settings.factor([{"loss": 3.0}] * 9) == 1.0
    assert (settings.clip, settings.clipped) == (1.0, clip.by_global_norm)


def test_of_characters(tmp_path, text, asked):
    check_up_and_down(asked(characters.run, tmp_path / "out", text=text), 2e-3, 1)


def test_of_hidden_tokens(tmp_path, text, asked):
    shape = mlm.Shape(width=16, hidden=32, heads=2, layers=1, length=16, tokens=64, vocabulary=300)
    check_up_and_down(asked(mlm.run, tmp_path / "out", text=text, shape=shape, peak=1e-2), 1e-2, STEPS // 10)


def test_of_a_pretrained_network(tmp_path, tiny_model, data, asked):
    shape = finetune.Shape(length=8, batch=4, examples=16, watched=8, tested=8)
    given = {"model": tiny_model, "data": data, "source": "here", "shape": shape}
    check_up_and_down(asked(finetune.run, tmp_path / "out", **given, peak=1e-3), 1e-3, STEPS // 10)


def test_of_speech(tmp_path, recordings, asked):
    """Constant, and half of it after each so many evaluations in which the error rate did not fall."""
    settings = asked(speech.run, tmp_path / "out", sounds.read(recordings), peak=4e-3)
    assert {settings.learning_rate(t) for t in range(STEPS)} == {4e-3}
    worse = [{"error_rate": rate, "loss": 9.0 - i} for i, rate in enumerate([0.5, 0.4, *[0.6] * speech.PATIENCE])]
    assert [settings.factor(worse[:count]) for count in (0, 2, len(worse) - 1)] == [1.0] * 3
    assert settings.factor(worse) == 0.5
