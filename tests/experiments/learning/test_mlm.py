"""Masked language modelling: what is hidden, what counts say, a run, its command."""

import json

import numpy as np
import pytest

from linattn_ref import cli
from linattn_ref.data import subwords
from linattn_ref.experiments.learning import encoder_attention, mlm, ngrams

TINY = mlm.Shape(width=16, hidden=32, heads=2, layers=1, length=16, tokens=128, vocabulary=300)


@pytest.fixture
def text(tmp_path):
    """Two hundred paragraphs in which each word says what the next is."""
    path, words = tmp_path / "text.txt", [f"w{chr(97 + i)}" for i in range(12)]
    lines = [" ".join(words[(start + step) % 12] for step in range(20 + start % 7)) for start in range(200)]
    path.write_text("\n\n".join(f"{line} {i}" for i, line in enumerate(lines)), encoding="utf-8")
    return path


def test_what_is_hidden():
    """15 % of each window, in the shares of BERT, never a separator, and the targets are what stood there."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(len(subwords.SPECIAL), 1000, (200, 100))
    tokens[:, ::10] = subwords.SEP
    read, chosen, targets = mlm.hide(tokens, rng, 1000)
    assert chosen.size == 200 * 15
    assert (np.bincount(chosen // 100, minlength=200) == 15).all()
    np.testing.assert_array_equal(targets, tokens.ravel()[chosen])
    assert (targets != subwords.SEP).all()
    others = np.setdiff1d(np.arange(tokens.size), chosen)
    np.testing.assert_array_equal(read.ravel()[others], tokens.ravel()[others])
    shown = read.ravel()[chosen]
    shares = [(shown == subwords.MASK).mean(), (shown == targets).mean()]
    np.testing.assert_allclose(shares, [0.8, 0.1], atol=5 * np.sqrt(0.8 * 0.2 / 3000))  # five standard deviations


def test_counts_of_pieces_and_pairs_are_probabilities():
    training = np.random.default_rng(0).integers(0, 6, 50)
    for before in (0, 3):
        each = [ngrams.surprise(training, np.array([before]), np.array([t]), 7) for t in range(7)]
        for name in each[0]:
            assert sum(np.exp(-found[name]) for found in each) == pytest.approx(1, rel=1e-12)
    never = ngrams.surprise(np.array([0, 1, 0, 1]), np.array([5]), np.array([1]), 6)
    assert never["pairs of pieces"] == never["pieces alone"]


@pytest.mark.slow
def test_it_learns_what_stands_beside(tmp_path, text):
    """Better than what single pieces say, which needs the neighbours."""
    shape = TINY._replace(width=32, hidden=64, tokens=256)
    mlm.run(tmp_path / "run", text=text, steps=400, peak=1e-2, shape=shape)
    facts, *lines = [json.loads(line) for line in (tmp_path / "run" / "record.jsonl").read_text().splitlines()]
    yardsticks = facts["facts"]["yardsticks"]
    assert yardsticks["pairs of pieces"] < yardsticks["pieces alone"]
    assert lines[-1]["loss"] < 0.95 * yardsticks["pieces alone"]


@pytest.mark.slow
@pytest.mark.parametrize("attention", encoder_attention.NAMES)
def test_every_mechanism_takes_a_step(tmp_path, text, attention):
    """Losses are numbers, near that of knowing nothing."""
    mlm.run(tmp_path / "run", text=text, attention=attention, k=8, steps=2, shape=TINY)
    line = json.loads((tmp_path / "run" / "record.jsonl").read_text().splitlines()[-1])
    assert line["loss"] == pytest.approx(np.log(TINY.vocabulary), rel=0.2)


@pytest.mark.slow
def test_the_command_trains_goes_on_and_says_what_is_wrong(tmp_path, text, capsys):
    out = tmp_path / "run"
    words = ["train", "mlm", "--quick", "--text", str(text), "--vocabulary", "300", "--steps", "6", "--out", str(out)]
    words += ["--attention", "linformer", "--sharing", "layerwise", "--k", "16"]
    assert cli.main(words) == 0
    told = capsys.readouterr().out
    assert "pairs of pieces: perplexity" in told
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert cli.main([*words, "--resume"]) == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    for more, message in (
        (["--resume", "--seed", "1"], "resume: the run in"),
        (["--resume", "--vocabulary", "290"], "resume: the run in"),
        (["--k", "65"], "k: expected 8 to the length, 64, got 65"),
        (["--vocabulary", "7000"], "texts: a vocabulary of 7000 pieces was asked for"),
        (["--length", "5000", "--k", "16"], "pieces of it are for training, one sequence has 5000"),
    ):
        capsys.readouterr()
        assert cli.main([*words, *more]) == 2
        told = capsys.readouterr().err
        assert message in told
        assert told.count("\n") == 1
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
