"""A network that has learned to draw: kept, shipped and loaded, and what the commands say where something is wrong."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
import pytest

from linattn_ref import cli
from linattn_ref.data import fetch
from linattn_ref.data.digits import Images
from linattn_ref.experiments.learned import drawing, images_drawn
from linattn_ref.experiments.learning import images, runs
from linattn_ref.experiments.learning.images import Shape
from linattn_ref.experiments.publishing.restore import restore
from linattn_ref.lecture.live import weights
from linattn_ref.training import checkpoint

FIGURES = Path(__file__).parents[3] / "figures"
TINY = Shape(width=8, hidden=16, heads=2, layers=1, batch=2)


class Parameters(NamedTuple):
    """As in a checkpoint, without the optimiser's state."""

    params: Any


def write_checkpoint(path, head="softmax", side=4, colours=1):
    """Of a network that has learned nothing."""
    params = images.start("linear", head, TINY, side, np.random.default_rng(3), colours=colours)
    facts = {"attention": "linear", "head": head, "side": side, "shape": TINY._asdict(), "seed": 3}
    checkpoint.save(path, Parameters(params), {"facts": facts, "step": 7})
    return params


@pytest.mark.parametrize(("head", "colours"), [("softmax", 1), ("mixture", 3)])
def test_what_is_shipped_is_the_network_in_half_precision(tmp_path, head, colours):
    params = write_checkpoint(tmp_path / "last.safetensors", head, 4, colours)
    assert cli.main(["ship", str(tmp_path), str(tmp_path / "shipped.safetensors")]) == 0
    network = drawing.load(tmp_path / "shipped.safetensors")
    assert (network.head, network.step, network.shape) == (head, 7, (4, 4) if colours == 1 else (4, 4, 3))
    table = params.embedding.table
    np.testing.assert_array_equal(network.params.embedding.table, table.astype(np.float16).astype(np.float32))
    assert np.abs(network.params.embedding.table - table).max() > 0
    exact = drawing.load(tmp_path / "last.safetensors")
    np.testing.assert_array_equal(exact.params.embedding.table, table)


def test_another_checkpoint_is_refused(tmp_path):
    path = tmp_path / "other.safetensors"
    facts = {"attention": "linear", "start": None}  # as `linattn-ref train finetune` says them
    checkpoint.save(path, Parameters(np.zeros(3)), {"facts": facts, "step": 1})
    with pytest.raises(ValueError, match=r"other\.safetensors: no checkpoint of `linattn-ref train images`"):
        drawing.load(path)


def test_a_checkpoint_with_a_head_that_is_none_is_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    params = write_checkpoint(path)
    facts = {"attention": "linear", "head": "gauss", "side": 4, "shape": TINY._asdict()}
    checkpoint.save(path, Parameters(params), {"facts": facts, "step": 7})
    with pytest.raises(ValueError, match=r"w\.safetensors: no checkpoint of `linattn-ref train images` .*gauss"):
        drawing.load(path)


@pytest.mark.parametrize(
    ("altered", "told"),
    [
        ({"shape": {**TINY._asdict(), "heads": 0}}, "no checkpoint of `linattn-ref train images`"),
        (
            {"side": 10**6},
            "no checkpoint of `linattn-ref train images` .*16 places of 8 columns, side 1000000",
        ),
        ({"side": 2}, "no checkpoint of `linattn-ref train images` .*16 places of 8 columns"),
        ({"side": 3}, "no checkpoint of `linattn-ref train images` .*16 places of 8 columns, side 3"),
        ({"shape": {**TINY._asdict(), "width": 10**9}}, "no checkpoint of .*16 places of 8 columns, side 4, width 1"),
        ({"shape": {**TINY._asdict(), "hidden": 10**15}}, "no checkpoint of `linattn-ref train images`"),
        ({"shape": [1, 2]}, "no checkpoint of `linattn-ref train images`"),
        ({"start": ["out/images"]}, "no checkpoint of `linattn-ref train images`"),
        ({"attention": "none"}, "no checkpoint of `linattn-ref train images` .*expected one of softmax"),
        ({"shape": {**TINY._asdict(), "hidden": 17}}, "the checkpoint is of another model"),
    ],
)
def test_altered_facts_are_refused_and_the_file_is_named(tmp_path, altered, told):
    path = tmp_path / "w.safetensors"
    params = write_checkpoint(path)
    facts = {**checkpoint.load(path).facts["facts"], **altered}
    checkpoint.save(path, Parameters(params), {"facts": facts, "step": 7})
    with pytest.raises(ValueError, match=rf"w\.safetensors: {told}"):
        drawing.load(path)


@pytest.mark.parametrize(
    ("path", "record"), list(zip(weights.SHIPPED, ("images_bits.json", "images_bits_softmax.json"), strict=True))
)
def test_the_shipped_networks_are_small_and_say_what_made_them(path, record):
    assert path.stat().st_size < 3e6
    network = drawing.load(path)
    attention = path.stem.removeprefix("digits_")
    assert network.facts["command"].startswith(f"linattn-ref train images --attention {attention}")
    assert network.shape == (28, 28)
    assert network.step == network.facts["steps"] + network.facts.get("start", {}).get("steps", 0)
    said = json.loads((FIGURES / "records" / record).read_text())
    assert (said["sha256"], said["step"], said["images"]) == (fetch.file_sha256(path), network.step, 10_000)


def test_the_shipped_networks_differ_in_their_attention_alone():
    ours, other = (drawing.load(path).facts for path in weights.SHIPPED)
    assert {key for key in ours if ours[key] != other[key]} == {"command", "attention", "start"}
    assert ours["start"]["steps"] == other["start"]["steps"]


@pytest.mark.slow
def test_the_shipped_network_has_the_bits_that_are_said():
    """Of ten test images, which stand in a figure's record. Sums of 784 terms in float32, in another order."""
    found = restore(images_drawn.Results, json.loads((FIGURES / "images_drawn.json").read_text())["results"])
    pixels = images_drawn.from_text(found.originals).reshape(10, -1)
    network = drawing.load()
    np.testing.assert_allclose(drawing.bits(network, pixels)[0], found.bits, rtol=1e-4)
    assert (found.step, found.commands) == (network.step, runs.commands(network.facts))


def test_one_image_has_no_standard_error(tmp_path, monkeypatch):
    write_checkpoint(tmp_path / "w.safetensors")
    one = SimpleNamespace(test=np.zeros((1, 4, 4), np.uint8))
    monkeypatch.setattr(drawing.images, "read", lambda *given: one)
    with pytest.raises(ValueError, match="count: expected at least 2 images, got 1"):
        drawing.measure(tmp_path / "w.safetensors")


def test_a_grid_has_grey_between_the_images():
    drawn = np.arange(5 * 6).reshape(5, 2, 3).astype(np.uint8)
    page = drawing.grid(drawn, 3)
    assert page.shape == (2 + 2 + 2, 3 + 2 + 3 + 2 + 3)
    np.testing.assert_array_equal(page[4:, 5:8], drawn[4])
    assert (page[2:4] == drawing.GREY).all()
    assert (page[:2, 3:5] == drawing.GREY).all()


def test_wrong_options_are_one_line(tmp_path, capsys):
    write_checkpoint(tmp_path / "w.safetensors")
    write_checkpoint(tmp_path / "m.safetensors", "mixture")
    PIL.Image.fromarray(np.zeros((5, 4), np.uint8)).save(tmp_path / "tall.png")
    PIL.Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "fits.png")
    PIL.Image.fromarray(np.full((4, 4), 1000, np.uint16)).save(tmp_path / "deep.png")
    (tmp_path / "text.png").write_text("no image")
    whole = (tmp_path / "fits.png").read_bytes()
    length = whole.index(b"IDAT") - 1  # the last byte of that chunk's
    (tmp_path / "cut.png").write_bytes(whole[: length + 10])
    (tmp_path / "altered.png").write_bytes(whole[:length] + b"\4" + whole[length + 1 :])
    words = ["generate", "--weights", str(tmp_path / "w.safetensors"), "--out", str(tmp_path / "drawn.png")]
    for more, told in (
        (["--weights", str(tmp_path / "none")], "no checkpoint at"),
        (["--weights", str(tmp_path / "fits.png")], "is no checkpoint, or a damaged one"),
        (["--rows", "2"], "--rows: those of which image?"),
        (["--temperature", "-1"], "temperature: expected a finite number of at least 0, got -1.0"),
        (["--temperature", "nan"], "temperature: expected a finite number of at least 0, got nan"),
        (["--weights", str(tmp_path / "m.safetensors"), "--temperature", "0"], "temperature: expected a finite number"),
        (["--prefix-image", str(tmp_path / "none.png")], "No such file"),
        (["--prefix-image", str(tmp_path / "text.png")], "text.png: not an image, or a damaged one (cannot identify"),
        (["--prefix-image", str(tmp_path / "cut.png")], "cut.png: not an image, or a damaged one"),
        (["--prefix-image", str(tmp_path / "altered.png")], "altered.png: not an image, or a damaged one"),
        (["--prefix-image", str(tmp_path / "tall.png")], "tall.png: expected 4 x 4 pixels, got 4 x 5"),
        (
            ["--prefix-image", str(tmp_path / "deep.png")],
            "deep.png: expected 8 bits per pixel, got more (Pillow's mode",
        ),
        (["--prefix-image", str(tmp_path / "fits.png"), "--rows", "4"], "--rows: expected fewer than the 4"),
        (["--prefix-image", str(tmp_path / "drawn.png")], "drawn.png is the image to go on from; give another file"),
        (["--out", str(tmp_path / "drawn.jpg")], "out: expected a file name that ends in .png, got drawn.jpg"),
    ):
        assert cli.main([*words, *more]) == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1
    assert not (tmp_path / "drawn.png").exists()


@pytest.mark.parametrize(
    ("count", "begun", "told"),
    [
        (0, None, "count: "),
        (2, np.zeros(16, int), r"begun: expected shape \(n,\) or \(2, n\) with n less than 16 pixels, got \(16,\)"),
        (2, np.zeros((3, 4), int), r"begun: .* got \(3, 4\)"),
        (2, np.zeros((1, 2, 4), int), r"begun: .* got \(1, 2, 4\)"),
        (2, np.array([0, 256]), "begun: expected numbers from 0 to 255, got 0 to 256"),
        (2, np.array([0, -1]), "begun: expected numbers from 0 to 255, got -1 to 0"),
    ],
)
def test_what_cannot_be_begun_is_named(tmp_path, count, begun, told):
    write_checkpoint(tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=told):
        drawing.draw(drawing.load(tmp_path / "w.safetensors"), count, np.random.default_rng(0), begun=begun)


@pytest.mark.slow
@pytest.mark.parametrize(("head", "colours"), [("softmax", 1), ("mixture", 1), ("softmax", 3)])
def test_what_was_begun_is_kept_and_ways_agree(tmp_path, head, colours):
    write_checkpoint(tmp_path / "w.safetensors", head, 4, colours)
    network = drawing.load(tmp_path / "w.safetensors")
    begun = np.arange(6 * colours)
    drawn = [
        drawing.draw(network, 3, np.random.default_rng(0), begun=begun, way=way)
        for way in ("compiled", "steps", "anew")
    ]
    assert drawn[0].shape == (3, *network.shape)
    np.testing.assert_array_equal(drawn[0].reshape(3, -1)[:, : len(begun)], np.tile(begun, (3, 1)))
    np.testing.assert_array_equal(drawn[0], drawn[1])
    np.testing.assert_array_equal(drawn[0], drawn[2])


@pytest.mark.slow
def test_the_command_draws(tmp_path, capsys):
    write_checkpoint(tmp_path / "w.safetensors")
    begun = np.arange(16, dtype=np.uint8).reshape(4, 4)
    PIL.Image.fromarray(begun).save(tmp_path / "begun.png")
    words = ["generate", "--weights", str(tmp_path / "w.safetensors"), "--out", str(tmp_path / "drawn.png")]
    assert cli.main([*words, "--prefix-image", str(tmp_path / "begun.png"), "--rows", "3", "--count", "3"]) == 0
    page = np.array(PIL.Image.open(tmp_path / "drawn.png"))
    assert page.shape == (10, 10)  # two by two, the first is the image itself
    np.testing.assert_array_equal(page[:4, :4], begun)
    np.testing.assert_array_equal(page[6:9, 6:], begun[:3])
    assert cli.main([*words[:-1], str(tmp_path / "drawn.jpg")]) == 2
    assert "expected a file name that ends in .png" in capsys.readouterr().err


PIXELS = np.arange(0, 256, 16, np.uint8).reshape(4, 4)
SHOWN = np.where(np.arange(4)[:, None] < 2, PIXELS, 0)  # of which the lower half is see-through, on black


def rotated(path):
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise, as photographs taken upright are
    PIL.Image.fromarray(np.rot90(PIXELS).copy()).save(path, exif=exif)


def see_through(path):
    alpha = np.where(np.arange(4)[:, None] < 2, 255, 0) + np.zeros((4, 4))
    PIL.Image.fromarray(np.stack([PIXELS, alpha], axis=-1).astype(np.uint8), "LA").save(path)


def see_through_by_palette(path):
    picture = PIL.Image.fromarray(np.where(SHOWN == 0, 7, SHOWN).astype(np.uint8)).convert("P")
    picture.save(path, transparency=7)


def opaque(path):
    PIL.Image.fromarray(np.dstack([PIXELS] * 3 + [np.full_like(PIXELS, 255)]), "RGBA").save(path)


def coloured(path):
    PIL.Image.fromarray(np.dstack([PIXELS, PIXELS, PIXELS // 2])).save(path)


def several(path):
    first, second = PIL.Image.fromarray(PIXELS), PIL.Image.fromarray(PIXELS[::-1].copy())
    first.save(path, save_all=True, append_images=[second])


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("write", "expected", "told"),
    [
        (rotated, PIXELS, ["turned as its EXIF data say"]),
        (see_through, SHOWN, ["parts that can be seen through are put on black"]),
        (see_through_by_palette, SHOWN, ["parts that can be seen through are put on black"]),
        (opaque, PIXELS, []),
        (coloured, None, ["colours are taken as grey"]),
        (several, PIXELS, ["the first of 2 images is taken"]),
    ],
)
def test_an_image_is_taken_as_a_viewer_shows_it_and_it_is_said(tmp_path, write, expected, told):
    path, said = tmp_path / "begun.png", []
    write(path)
    pixels = drawing.read_image(path, (4, 4), say=said.append)
    assert said == [f"{path}: {note}" for note in told]
    if expected is not None:
        np.testing.assert_array_equal(pixels, expected)


def test_what_is_done_to_a_prefix_image_reaches_the_user(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(drawing, "draw", partial(drawing.draw, way="steps"))  # a token of it all is a kernel in float32
    write_checkpoint(tmp_path / "w.safetensors")
    rotated(tmp_path / "begun.png")
    words = ["--weights", str(tmp_path / "w.safetensors"), "--count", "1", "--out", str(tmp_path / "drawn.png")]
    assert cli.main(["generate", *words, "--prefix-image", str(tmp_path / "begun.png")]) == 0
    assert f"{tmp_path / 'begun.png'}: turned as its EXIF data say" in capsys.readouterr().err


def test_bits_that_could_not_be_written_are_not_counted(tmp_path, monkeypatch, capsys):
    counted = []
    monkeypatch.setattr(drawing, "measure", lambda *_, **__: counted.append(True))
    (tmp_path / "file").touch()
    (tmp_path / "folder.json").mkdir()
    for out in (tmp_path / "folder.json", tmp_path / "file" / "bits.json"):
        assert cli.main(["bits", "--out", str(out)]) == 2
        error = capsys.readouterr().err
        assert f"{out}: cannot write: " in error
        assert error.count("\n") == 1
    assert not counted


def test_bits_are_not_written_over_the_weights(tmp_path, monkeypatch, capsys):
    path = tmp_path / "w.safetensors"
    write_checkpoint(path)
    before = path.read_bytes()
    assert cli.main(["bits", "--weights", str(path), "--out", str(path)]) == 2
    assert "out: expected a file name that ends in .json, got w.safetensors" in capsys.readouterr().err
    assert path.read_bytes() == before
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "record.jsonl").touch()
    assert cli.main(["bits", "--weights", str(path), "--out", str(tmp_path / "run" / "result.json")]) == 2
    assert "result.json lies in the folder of a run" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bits", "--weights", "none.safetensors"]) == 2
    assert "weights: no checkpoint at none.safetensors" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_bits_are_written_with_their_errors(tmp_path, monkeypatch, capsys):
    write_checkpoint(tmp_path / "w.safetensors")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 28, 28)).astype(np.uint8)
    monkeypatch.setattr(images, "read", lambda *_: Images(pixels, np.zeros(5), pixels, np.zeros(5)))
    words = ["bits", "--weights", str(tmp_path / "w.safetensors"), "--out", str(tmp_path / "bits.json")]
    assert cli.main([*words, "--images", "4"]) == 0
    assert "of 4 test images" in capsys.readouterr().out
    found = json.loads((tmp_path / "bits.json").read_text())
    network = drawing.load(tmp_path / "w.safetensors")
    each, without_first = drawing.bits(network, images.middle(pixels[:4], 4))
    assert found["bits"] == pytest.approx(each.mean())
    assert found["error"] == pytest.approx(each.std(ddof=1) / 2)
    assert found["bits_without_first"] == pytest.approx(without_first.mean())
    assert found["facts"]["command"].startswith("linattn-ref bits")
