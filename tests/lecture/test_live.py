"""The live pages: what they are made of. What they do, a browser tests (test_live_browser.py)."""

import json
import re

import numpy as np
import page_network
import pytest

from linattn_ref.experiments.learning import runs
from linattn_ref.lecture.live import build, frames, head, page, slices, speed, weights
from linattn_ref.nested import leaves

CHAPTER = """
import numpy as np
rng = np.random.default_rng(0)
first = rng.standard_normal(2)
unused = [1 / 0 for n in first]
scale = 3
scale = 2
table = {}
table["a"] = scale
scale = "another"
assert False, "not run"
print("not run" * (1 // 0))

def panel(axes, value):
    return table["a"] * value + second[0] + later

second = rng.standard_normal(2)
later = 1
chapter.explore(panel, (1, 2), name="n", alt="x")
later = 2
"""


@pytest.fixture
def chapter(tmp_path):
    path = tmp_path / "01_small.py"
    path.write_text(CHAPTER)
    return path


def test_a_slider_is_given_what_its_chapter_gives_it(chapter):
    (((panel, values), options),) = slices.calls(chapter)
    rng = np.random.default_rng(0)
    rng.standard_normal(2)  # drawn before, and not left out: the numbers that follow depend on it
    assert (values, options) == ((1, 2), {"name": "n", "alt": "x"})
    assert panel(None, 10) == 2 * 10 + rng.standard_normal(2)[0] + 1


def test_what_the_slider_does_not_need_is_left_out(chapter):
    text = slices.source(chapter)
    for gone in ("unused", "assert", "print", "scale = 3", "another", "later = 2"):
        assert gone not in text
    chapter.write_text(CHAPTER.replace("unused = [", "unused  =  [") + "# a remark")
    assert slices.source(chapter) == text


def test_the_frames_are_those_of_the_chapters():
    kept = {path.stem: json.loads(path.read_text(encoding="utf-8"))["source"] for path in frames.KEPT.glob("*.json")}
    chapters = frames.chapters()  # a new one may have no frames yet
    old = sorted(number for number, source in kept.items() if source != frames.source_hash(chapters[number]))
    assert kept
    assert not old, f"linattn-ref live --draw {' '.join(old)}"


def test_each_slider_asks_for_a_guess_first():
    for path in frames.KEPT.glob("*.json"):
        asked = frames.guesses(path.stem)
        assert [*asked] == [each["name"] for each in json.loads(path.read_text(encoding="utf-8"))["sliders"]], path
        for text in (text for each in asked.values() for text in (each["guess"], each["answer"])):
            assert text.endswith((".", "?"))
        assert all("?" in each["guess"] for each in asked.values())
    with pytest.raises(ValueError, match=r"guesses\.toml: .* each slider of chapter 99, found no \[99\]"):
        frames.guesses("99")


def test_data_cannot_end_its_element():
    given = {"text": "</script><b>"}
    found = page.inline("sums.html", {"head": given}, links="")
    (text,) = re.findall(r'<script type="application/json" id="head">(.*?)</script>', found)
    assert json.loads(text) == given


def test_links_lead_to_the_other_pages():
    assert 'href="../pixels.html"' in page.navigation("frames/index.html")
    assert '<a href="index.html" aria-current="page">' not in page.navigation("frames/01.html")
    assert page.navigation("sums.html", home="../index.html").startswith(
        '<nav aria-label="Pages"><a href="../index.html">The course</a>'
    )


def test_a_page_that_is_too_large_is_an_error():
    with pytest.raises(ValueError, match=r"sums.html: the page would have [\d,]+ bytes, more than 4,000,000"):
        page.inline("sums.html", {"head": "x" * 4_000_000}, links="")


@pytest.mark.parametrize("path", weights.SHIPPED)
def test_a_network_says_what_trained_it(path):
    trained = weights.read(path)
    told = build.origin(trained)
    at = [told.index(command) for command in runs.commands(trained.facts)]
    assert len(at) == 3
    assert at == sorted(at)
    seen = trained.facts["start"]["steps"] + trained.facts["steps"]
    assert f"after {seen:,} steps, {8 * seen:,} images" in told


def test_networks_that_saw_different_images_are_not_to_be_compared():
    told = "They have not seen as many images as each other"
    both = [weights.read(path) for path in weights.SHIPPED]
    assert told not in build.pixels()["networks"]["origin"]
    shape = both[0].facts["shape"]
    both[0] = both[0]._replace(facts={**both[0].facts, "shape": {**shape, "batch": 2 * shape["batch"]}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "read", lambda path: both.pop())
        assert told in build.pixels()["networks"]["origin"]


def test_all_pages_are_written(tmp_path):
    written = build.make(tmp_path / "live", home="../index.html")
    assert {path.name for path in written} >= {"pixels.html", "sums.html", "index.html"}
    assert all('<a href="' in path.read_text(encoding="utf-8") for path in written)


def test_frames_are_current_until_their_chapter_moves_on(chapter, tmp_path, monkeypatch):
    monkeypatch.setattr(frames, "CHAPTERS", tmp_path)
    monkeypatch.setattr(frames, "KEPT", tmp_path)
    text = CHAPTER.replace("return table", "axes.set_xlabel(f'{value} of $n$'); return table")
    chapter.write_text("# # A *small* one\n" + text)
    drawn = json.loads(frames.draw("01", "by hand").read_text())
    assert drawn["title"] == "A *small* one"
    (slider,) = drawn["sliders"]
    assert [frame["said"] for frame in slider["frames"]] == ["n = 1; 1 of n", "n = 2; 2 of n"]
    assert drawn["source"] == frames.source_hash(chapter)
    chapter.write_text(chapter.read_text().replace("scale = 2", "scale = 4"))
    assert drawn["source"] != frames.source_hash(chapter)
    with pytest.raises(ValueError, match="draw: expected a chapter with sliders, 01, got '02'"):
        frames.draw("02", "by hand")


def test_a_head_is_kept_with_what_it_was_made_with(tmp_path):
    found = {"layer": 1, "head": 2, "model": "a network", "tokens": ["it"], "q": [[1.0]], "k": [[2.0]], "v": [[3.0]]}
    head.save(found, "by hand", tmp_path / "head.json")
    given = head.read(tmp_path / "head.json")
    assert {name: given[name] for name in ("tokens", *"qkv")} == {name: found[name] for name in ("tokens", *"qkv")}
    assert given["origin"].startswith("Layer 2 of 6, head 3 of 12 of a network,")
    assert "by hand" in given["origin"]


@pytest.mark.parametrize("form", ["float16", "int8"])
def test_the_page_computes_a_network_that_is_rounded(form, monkeypatch):
    trained = weights.read(weights.SHIPPED[0])
    if form == "int8":  # where there is no room for two bytes per number
        monkeypatch.setattr(weights, "LARGEST", 1.5 * sum(x.size for _, x in leaves(trained.params)))
    assert weights.packed(trained)["format"] == form
    for (_, x), (_, rounded) in zip(leaves(trained.params), leaves(page_network.network(trained).params), strict=True):
        assert rounded.dtype == np.float64
        np.testing.assert_allclose(rounded, x, rtol=0, atol=abs(x).max() / 254)


def test_a_speed_is_told_by_pixels_and_rows():
    rows = {"browser": "a browser", "linear": [28.0, 28.0], "softmax": [28.0, 84.0]}
    linear, softmax = speed.told(rows)
    assert linear == "linear: 1000 pixels per second in a browser; 1.00 ms per pixel in the first row, 1.00 in the last"
    assert softmax.startswith("softmax: 500 pixels per second")
