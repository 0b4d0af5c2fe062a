"""Masked language modelling: what is hidden, what counts say, a run, its command."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest

from linattn_ref import cli
from linattn_ref.attention import linformer
from linattn_ref.data import subwords
from linattn_ref.experiments.learning import encoder_attention, mlm, ngrams
from linattn_ref.models import encoder

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


def test_near_places_begin_with_the_larger_score():
    """Without tokens, and of a hundred heads: the score of a place falls with its distance."""
    rng, far = np.random.default_rng(0), np.array([0, 1, 3, 9, 27])
    scores = np.zeros((100, 64, 64))
    for head in scores:
        drawn = encoder.draw(rng, tokens=5, places=64, width=16, hidden=16, layers=1)
        begun = mlm.begun(drawn, rng)
        q, k, _ = np.split(begun.positions.table @ begun.blocks[0].attention.inner.w, 3, axis=-1)
        head[...] = q @ k.T
    fall = [np.mean([np.diagonal(head, d).mean() for head in scores]) for d in far]
    assert (np.diff(fall) < 0).all()
    assert begun.embedding.table.std() == pytest.approx(mlm.START, rel=0.3)  # 80 numbers
    assert begun.positions.table.std() == pytest.approx(2 * mlm.START, rel=0.1)


@pytest.mark.slow
def test_projections_that_are_held_stay_mean_pooling(tmp_path, text):
    """But for weight decay; learned ones move by about the rate in an update, also where they ought to be 0."""
    pool, how = linformer.mean_pool(8, TINY.length), {"attention": "linformer", "k": 8, "pooled": True, "steps": 8}
    for held in (False, True):
        params = mlm.run(tmp_path / f"run-{held}", text=text, held=held, shape=TINY, **how)
        for matrix in params.encoder.blocks[0].attention.own:
            assert (np.abs(matrix - pool).max() < 1e-4) == held


@pytest.mark.slow
def test_what_is_said_of_masks_alone(tmp_path, text):
    """Of a network that begins, all hidden tokens are alike; the total is the mean over both kinds."""
    mlm.run(tmp_path / "run", text=text, steps=1, shape=TINY)
    line = json.loads((tmp_path / "run" / "record.jsonl").read_text().splitlines()[-1])
    assert line["masked"] == pytest.approx(line["loss"], rel=0.1)
    assert line["masked"] != line["loss"]


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
    other = tmp_path / "other.txt"
    other.write_text(text.read_text(encoding="utf-8").replace("w", "v"), encoding="utf-8")
    assert cli.main([*words, "--resume"]) == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    for more, message in (
        (["--resume", "--seed", "1"], "resume: the run in"),
        (["--resume", "--vocabulary", "290"], "resume: the run in"),
        (["--resume", "--text", str(other)], "is one with other settings: command, text, vocabulary"),
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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends signals to a process group")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_stopped_at_any_moment_the_command_goes_on_to_the_same_numbers(tmp_path, text, sent):
    """After its first checkpoint; the record's bytes and the parameters are those of a run that was not stopped."""
    words = ["train", "mlm", "--quick", "--text", str(text), "--vocabulary", "300", "--steps", "60", "--debug"]
    words += ["--attention", "linformer", "--k", "16", "--out", "run"]
    program = [sys.executable, "-m", "linattn_ref", *words]
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # in the background of a shell it is ignored
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for folder in (whole, stopped):
        folder.mkdir()
    subprocess.run(program, cwd=whole, check=True, capture_output=True)
    with subprocess.Popen(
        program, cwd=stopped, stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, preexec_fn=heed
    ) as child:
        while not (stopped / "run" / "last.safetensors").exists():
            time.sleep(0.01)
        os.killpg(child.pid, sent)
        child.communicate()
    assert child.returncode != 0
    subprocess.run([*program, "--resume"], cwd=stopped, check=True, capture_output=True)
    for name in ("record.jsonl", "last.safetensors", "best.safetensors", "tokenizer.json"):
        assert (stopped / "run" / name).read_bytes() == (whole / "run" / name).read_bytes(), name
