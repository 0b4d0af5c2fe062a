"""A tiny network learns a text that repeats itself, and the command that trains it tells what went wrong."""

import numpy as np
import pytest

from linattn_ref.data.text import Text
from linattn_ref.experiments.learning import characters, learn
from linattn_ref.experiments.learning.characters import Shape

TINY = Shape(width=16, hidden=32, heads=2, layers=1, length=12, batch=4)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("abcd" * 300, encoding="utf-8")
    return path


@pytest.mark.slow  # kernels of whole networks in float32, which no other default test compiles
@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_it_learns_what_repeats_itself(tmp_path, text, attention):
    """Better than the best that can be said without context, log 4."""
    how = {"text": text, "attention": attention, "steps": 150, "peak": 2e-2, "shape": TINY}
    params, run, ready = learn.run(characters.begin, tmp_path / "run", **how)
    assert run.facts["yardsticks"]["characters alone"] == pytest.approx(np.log(4), rel=1e-3)
    assert run.curves["loss"][-1] < 0.5 * np.log(4)
    *_, written, _ = ready.said(run, params)
    assert len(written.strip()) == TINY.length
    assert set(written.strip()) <= set("abcd")


def test_the_alphabet_is_the_most_frequent():
    found = characters.corpus(Text("x", ["aab", "a" + "".join(map(chr, range(1000, 1200)))], ""))
    assert found.alphabet[:2] == "a\n"
    assert len(found.alphabet) == characters.ALPHABET
    assert max(found.training.max(), found.validation.max()) == characters.ALPHABET - 1


def test_windows_read_what_comes_before_what_is_said():
    read = characters.windows(np.arange(10), 3, np.array([0, 6]))
    np.testing.assert_array_equal(read, [[0, 1, 2, 3], [6, 7, 8, 9]])


@pytest.mark.parametrize("text", ["ab" * 20, "a"])
def test_a_short_text_is_an_error(tmp_path, text):
    """And nothing besides: no warning of a mean over nothing."""
    (tmp_path / "text.txt").write_text(text)
    with pytest.raises(ValueError, match=r"text: \d characters of it are for \w+, more than 12 are needed"):
        characters.begin(text=tmp_path / "text.txt", shape=TINY, steps=1)


def test_heads_that_do_not_fit_are_an_error(tmp_path):
    """Before anything is read."""
    with pytest.raises(ValueError, match="shape: a width of 10 cannot be cut into 3 heads"):
        characters.begin(text=tmp_path / "nowhere", shape=TINY._replace(width=10, heads=3))


def test_yardsticks_are_of_what_the_network_reads():
    """Of a longer text, other characters change nothing."""
    validation = np.arange(40) % 3
    found = characters.Corpus("abc", np.arange(90) % 3, validation, "x", "")
    shape = TINY._replace(batch=1, length=8)
    read = characters.held_out(found, shape)
    assert read.shape == (4, 9)
    expected = characters.yardsticks(found, shape)
    validation[33:] = 0
    assert characters.yardsticks(found, shape) == expected
    assert expected["pairs of characters"] == pytest.approx(-np.log(31 / 33), rel=0.02)


def test_a_text_of_nul_characters_is_a_text():
    """As a power cut leaves a file: each of its characters is in the alphabet, alone or among others."""
    for text, alphabet in (("\0" * 400, "\0"), ("\0ab\0" * 100, "\0ab")):
        found = characters.corpus(Text("x", [text], ""))
        assert found.alphabet == alphabet
        assert "".join(found.alphabet[i] for i in [*found.training, *found.validation]) == text
        assert all(np.isfinite(loss) for loss in characters.yardsticks(found, TINY).values())
