"""A tiny network learns to draw squares of a digit; bits are counted over all pixels, and without the first."""

import numpy as np
import pytest

from linattn_ref import cli
from linattn_ref.data import cifar
from linattn_ref.data.digits import Images
from linattn_ref.experiments.learned import drawing
from linattn_ref.experiments.learning import images, runs
from linattn_ref.experiments.learning.images import Shape
from linattn_ref.nn import positions
from linattn_ref.nn.logistic_mixture import probabilities

TINY = Shape(width=8, hidden=16, heads=2, layers=1, batch=2)
FLOAT = np.float32


@pytest.fixture
def digits(monkeypatch):
    """Two kinds of stripes."""
    rng = np.random.default_rng(0)
    training = np.repeat(rng.integers(0, 2, (40, 28, 1)) * 200 + 20, 28, axis=2).astype(np.uint8)
    found = Images(training, np.zeros(40, np.uint8), training[:6].copy(), np.zeros(6, np.uint8))
    monkeypatch.setattr(images, "read", lambda *_: found)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("head", ["softmax", "mixture"])
def test_bits_are_those_of_the_probabilities(head):
    """Pixel by pixel: what was said of the value that came."""
    params = images.start("linear", head, TINY, 3, np.random.default_rng(0))
    pixels = np.random.default_rng(1).integers(0, 256, (5, 9))
    model = images.model_of("linear", TINY, 9, np.random.default_rng(0))
    both = images.bits(params, "linear", head, TINY, pixels)
    scores, _ = images.causal.forward(images.shifted(pixels), params, model)
    if head == "softmax":
        p = np.exp(scores.astype(float))
        p /= p.sum(axis=-1, keepdims=True)
    else:
        p = probabilities(scores.astype(float))
    surprise = -np.log2(np.take_along_axis(p, pixels[..., None], axis=-1)[..., 0])
    np.testing.assert_allclose(both, [surprise.mean(axis=1), surprise[:, 1:].mean(axis=1)], rtol=1e-5)


@pytest.mark.slow
def test_features_are_drawn_anew_for_each_batch_of_a_test():
    """And the same each time."""
    params = images.start("performer", "softmax", TINY, 3, np.random.default_rng(0))
    pixels = np.tile(np.random.default_rng(1).integers(0, 256, 9), (images.AT_A_TIME + 1, 1))  # one image
    each, _ = images.bits(params, "performer", "softmax", TINY, pixels)
    np.testing.assert_allclose(each[:-1], each[0], rtol=1e-6)
    assert abs(each[-1] / each[0] - 1) > 1e-5
    np.testing.assert_array_equal(images.bits(params, "performer", "softmax", TINY, pixels)[0], each)


@pytest.mark.slow
def test_no_pixel_sees_itself_or_what_follows():
    params = images.start("linear", "softmax", TINY, 3, np.random.default_rng(0))
    model = images.model_of("linear", TINY, 9, np.random.default_rng(0))
    pixels = np.random.default_rng(1).integers(0, 256, (1, 9))
    other = pixels.copy()
    other[:, 4:] = 255 - other[:, 4:]
    scores, others = (images.causal.forward(images.shifted(x), params, model)[0] for x in (pixels, other))
    np.testing.assert_allclose(scores[:, :5], others[:, :5], rtol=0, atol=1e-5)


def test_close_intensities_begin_with_close_embeddings():
    table = images.smooth(4000, np.random.default_rng(0))
    together = (table[100] * table).mean(axis=1)  # over 4000 columns
    expected = np.exp(-0.5 * ((np.arange(256) - 100) / images.SMOOTH) ** 2)
    np.testing.assert_allclose(together, expected, atol=5 / np.sqrt(4000) * 1.5)  # five standard deviations


def test_a_place_has_its_row_its_column_and_its_colour():
    table = images.rows_and_columns(3, 8).reshape(3, 3, 8)
    half = positions.sinusoidal(3, 4)
    for row, column in np.ndindex(3, 3):
        np.testing.assert_array_equal(table[row, column], [*half[row], *half[column]])
    coloured = images.rows_and_columns(3, 8, 3).reshape(3, 3, 3, 8)
    colours = np.broadcast_to(positions.sinusoidal(3, 8), coloured.shape)
    np.testing.assert_allclose(coloured - table[:, :, None], colours, atol=1e-15)


@pytest.mark.slow
def test_a_run_goes_on_from_the_weights_of_another(tmp_path, digits, capsys):
    """One step so small that it changes next to nothing: its bits are those of the run before."""
    words = ["train", "images", "--quick"]
    assert cli.main([*words, "--out", str(tmp_path / "a")]) == 0
    before = runs.read(tmp_path / "a")
    words += ["--steps", "1", "--peak", "1e-9", "--seed", "1", "--start", str(tmp_path / "a" / "last.safetensors")]
    assert cli.main([*words, "--out", str(tmp_path / "b")]) == 0
    after = runs.read(tmp_path / "b")
    assert after.curves["bits"][-1] == pytest.approx(before.curves["bits"][-1], rel=1e-6)
    assert after.curves["bits"][-1] < 0.9 * before.curves["bits"][0]  # and not those of a network that begins
    assert runs.commands(after.facts) == (before.facts["command"], after.facts["command"])
    assert drawing.load(tmp_path / "b" / "last.safetensors").step == 41
    assert cli.main([*words, "--out", str(tmp_path / "b"), "--resume"]) == 0
    assert cli.main([*words, "--attention", "softmax", "--out", str(tmp_path / "c")]) == 2
    assert "has attention linear, not softmax" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_held_out_images_are_looked_at_and_not_learned(digits):
    digits.training[-4:] = 255  # of 40
    digits.test[:] = 255
    ready = images.begin(shape=TINY, cut=4)
    rng = np.random.default_rng(0)
    assert max(ready.task.batch(rng)[0].max() for _ in range(50)) < 255
    each, _ = images.bits(ready.params, "linear", "softmax", TINY, np.full((4, 16), 255))
    assert ready.task.evaluate(ready.params)["bits"] == pytest.approx(each.mean(), rel=1e-6)


def test_one_image_cannot_be_held_out_and_learned(digits, monkeypatch):
    monkeypatch.setattr(images, "read", lambda *_: digits._replace(training=digits.training[:1]))
    with pytest.raises(ValueError, match="data: expected at least 2 training images, got 1"):
        images.begin(shape=TINY, cut=4)


def test_a_head_that_is_none_is_an_error():
    with pytest.raises(ValueError, match="head: expected one of softmax, mixture, got 'gauss'"):
        images.begin(head="gauss")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--width", "5", "--heads", "1"], "a width of 5 cannot be halved, for a pixel's row and its column"),
        (["--width", "10", "--heads", "4"], "a width of 10 cannot be cut into 4 heads"),
        (["--heads", "3"], "a width of 16 cannot be cut into 3 heads"),
    ],
)
def test_a_width_that_does_not_fit_is_an_error(tmp_path, words, told, capsys):
    """Before images are read, and before anything is written."""
    words += ["--data", str(tmp_path / "nowhere"), "--out", str(tmp_path / "run")]
    assert cli.main(["train", "images", "--quick", *words]) == 2
    assert capsys.readouterr().err == f"linattn-ref: error: shape: {told}\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("side", [29, 40, 0, -1])
def test_a_square_that_is_larger_than_the_images_is_an_error(digits, side):
    with pytest.raises(ValueError, match=f"cut: expected a side of 1 to 28 pixels, got {side}"):
        images.begin(shape=TINY, cut=side)


def test_a_rate_of_0_is_an_error(tmp_path, capsys):
    """Hours of training would learn nothing."""
    assert cli.main(["train", "images", "--quick", "--peak", "0", "--out", str(tmp_path / "run")]) == 2
    assert "peak: expected a rate above 0, with which something is learned; got 0" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_collection_that_is_none_is_an_error():
    with pytest.raises(ValueError, match="collection: expected one of mnist, cifar-10, got 'svhn'"):
        images.read(None, "svhn")
    with pytest.raises(ValueError, match="CIFAR-10 is not fetched; give the folder"):
        images.read(None, "cifar-10")


@pytest.mark.slow
def test_colours_are_numbers_of_their_own(tmp_path, colours, capsys):
    out = tmp_path / "run"
    words = ["train", "images", "--quick", "--collection", "cifar-10", "--data", str(colours), "--out", str(out)]
    assert cli.main(words) == 0
    assert "bits per pixel of 2 held-out images" in capsys.readouterr().out
    assert drawing.load(out / "last.safetensors").shape == (8, 8, 3)
    assert cli.main([*words, "--resume"]) == 0
    changed = colours / cifar.TRAINING[0]
    changed.write_bytes(changed.read_bytes()[:-1] + b"\0")
    assert cli.main([*words, "--resume"]) == 2
    assert "error: resume: the run in" in capsys.readouterr().err
