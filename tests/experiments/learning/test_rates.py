"""The learning rates that the tasks ask for: where they begin, turn and end. Nothing is trained."""

import numpy as np

from linattn_ref.experiments.learning import characters, finetune, images, mlm, speech
from linattn_ref.training import clip

STEPS = 200


def check_up_and_down(settings, peak, warm):
    """Evenly up to the peak, then half a cosine to nothing."""
    rates = np.array([settings.learning_rate(t) for t in range(STEPS + 1)])
    falling = peak * (1 + np.cos(np.pi * np.arange(STEPS + 1) / STEPS)) / 2
    rising = np.minimum(1.0, np.arange(1, STEPS + 2) / warm)
    np.testing.assert_allclose(rates, rising * falling, rtol=1e-12, atol=1e-18)
    assert settings.factor([{"loss": 3.0}] * 9) == 1.0
    assert (settings.clip, settings.clipped) == (1.0, clip.by_global_norm)


def test_of_characters(text):
    check_up_and_down(characters.begin(steps=STEPS, text=text, peak=2e-3).settings, 2e-3, 1)


def test_of_images(colours):
    given = {"collection": "cifar-10", "data": colours}
    check_up_and_down(images.begin(steps=STEPS, **given, peak=4e-3).settings, 4e-3, STEPS // 50)


def test_of_hidden_tokens(text):
    shape = mlm.Shape(width=16, hidden=32, heads=2, layers=1, length=16, tokens=64, vocabulary=300)
    check_up_and_down(mlm.begin(steps=STEPS, text=text, shape=shape, peak=1e-2).settings, 1e-2, STEPS // 10)


def test_of_a_pretrained_network(tiny_model, data):
    shape = finetune.Shape(length=8, batch=4, examples=16, watched=8, tested=8)
    given = {"model": tiny_model, "data": data, "source": "here", "shape": shape}
    check_up_and_down(finetune.begin(steps=STEPS, **given, peak=1e-3).settings, 1e-3, STEPS // 10)


def test_of_speech(recordings):
    """Constant, and half of it after each so many evaluations in which the error rate did not fall."""
    settings = speech.begin(steps=STEPS, data=recordings, peak=4e-3).settings
    assert {settings.learning_rate(t) for t in range(STEPS)} == {4e-3}
    worse = [{"error_rate": rate, "loss": 9.0 - i} for i, rate in enumerate([0.5, 0.4, *[0.6] * speech.PATIENCE])]
    assert [settings.factor(worse[:count]) for count in (0, 2, len(worse) - 1)] == [1.0] * 3
    assert settings.factor(worse) == 0.5
