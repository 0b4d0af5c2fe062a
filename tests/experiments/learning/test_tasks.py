"""What every task of ``linattn-ref train`` keeps to: it trains, records, is stopped, goes on, and can be lengthened."""

import argparse
import importlib
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from linattn_ref import cli
from linattn_ref.cli import train
from linattn_ref.experiments.learning import options, runs
from linattn_ref.experiments.learning.tasks import TASKS
from linattn_ref.training.folder import LAST, RECORD, TIMES

README = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
# What each learns from here; a word in braces is a fixture.
GIVEN = {
    "characters": ["--text", "{text}"],
    "duplication": [],
    "images": ["--collection", "cifar-10", "--data", "{colours}"],
    "mlm": ["--text", "{text}", "--vocabulary", "300", "--attention", "linformer"],
    "speech": ["--data", "{recordings}"],
    "finetune": ["--model", "{tiny_model}", "--data", "{data}", "--source", "here"],
}
every_task = pytest.mark.parametrize("task", TASKS)


@pytest.fixture
def words(task, request):
    """The command, without a folder to write in."""
    given = [str(request.getfixturevalue(word[1:-1])) if word[0] == "{" else word for word in GIVEN[task]]
    return ["train", task, "--quick", *given]


def content(out):
    """What is to be the same; a process that was killed may leave what it was writing, hidden."""
    return {path.name: path.read_bytes() for path in out.glob("[!.]*") if path.name != TIMES}


# --- What is said of it ---------------------------------------------------------------------------------------------


@every_task
def test_what_is_said_of_its_options_is_so(task):
    """Defaults that stand in the words of a help; and what is otherwise with ``--quick`` can be chosen."""
    module = importlib.import_module(f"linattn_ref.experiments.learning.{task}")
    for name, _, default, option in options.options_of(module):
        if said := re.search(r"\(default: (\d[\d.]*)[,;)]", option.help):
            assert type(default)(said[1]) == default, name
    begin = inspect.signature(module.begin).parameters
    assert {*module.QUICK} <= {*begin, *module.Shape._fields}
    parser = argparse.ArgumentParser()
    train.add_options(task, parser)
    steps, quick = begin["steps"].default, {"steps": train.QUICK_STEPS, **module.QUICK}["steps"]
    (said,) = (option.help for option in parser._actions if option.dest == "steps")
    assert said == f"(default: {steps}, or {quick} with --quick)"


@every_task
def test_readme_names_it(task):
    (row,) = (line for line in README.splitlines() if line.startswith("| `linattn-ref train NAME`"))
    assert f"`{task}`" in row


# --- A run ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # kernels of whole networks in float32
@every_task
def test_it_trains_records_goes_on_and_is_lengthened(tmp_path, task, words, capsys):
    out = tmp_path / "run"
    short, long = ([*words, "--out", str(out), "--steps", steps] for steps in ("4", "8"))
    assert cli.main(short) == 0
    told = capsys.readouterr().out
    run, once = runs.read(out), content(out)
    assert run.facts["command"].split()[:3] == ["linattn-ref", "train", task]
    assert (run.facts["seed"], run.facts["steps"], run.steps[-1]) == (0, 4, 4)
    assert told.splitlines()[-1].startswith("wrote ")
    assert all(name in told.splitlines()[-1] for name in once)

    assert cli.main([*short, "--resume"]) == 0  # it has come to its end
    again = capsys.readouterr().out
    assert (again.splitlines()[:-1], content(out)) == (told.splitlines()[:-1], once)
    assert LAST not in again  # which was written before
    for refused, why in (
        (short, "has the last.safetensors of a run; resume that one, or give another folder"),
        ([*short, "--resume", "--seed", "1"], "resume: the run in .* is one with other settings: seed"),
    ):
        assert cli.main(refused) == 2
        *notes, complaint = capsys.readouterr().err.splitlines()
        assert re.fullmatch(f"linattn-ref: error: .*{why}.*", complaint)
        assert all("left out" in note for note in notes)
        assert content(out) == once

    assert cli.main([*long, "--resume"]) == 0
    longer = runs.read(out)
    assert (longer.facts["steps"], longer.steps[-1]) == (8, 8)
    assert [said["from"] for said in longer.facts["lengthened"]] == [4]
    assert [*json.loads((out / RECORD).read_text().splitlines()[-1])] == ["step", *longer.curves]


STOPS = ((signal.SIGINT, 130), (signal.SIGKILL, -9))  # each with the status with which a run then ends
# Steps enough for a signal to come before the last.
LONG = {
    "characters": ["--steps", "300"],
    "images": ["--steps", "400", "--every", "40"],
    "mlm": ["--steps", "200"],
    "speech": ["--steps", "800"],
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends signals to a process group")
@every_task
def test_stopped_it_goes_on_to_the_same_bytes(tmp_path, task, words):
    """By Ctrl-C, then by kill -9, each after one more checkpoint; all files but the times are compared."""
    steps = LONG.get(task, ["--steps", "600"])
    program = [sys.executable, "-m", "linattn_ref", *words, *steps, "--resume", "--out", "run"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for folder in (whole, stopped):
        folder.mkdir()
    subprocess.run(program, cwd=whole, check=True, capture_output=True)
    for sent, status in STOPS:
        assert stop(program, stopped, sent) == status
        assert runs.read(stopped / "run").steps[-1] < runs.read(whole / "run").steps[-1]
    subprocess.run(program, cwd=stopped, check=True, capture_output=True)
    assert content(stopped / "run") == content(whole / "run")


def stop(program, folder, sent):
    """Start it in ``folder``, send the signal as soon as there is another checkpoint; the status with which it ends."""
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # in a shell's background it is ignored
    how = {"cwd": folder, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
    before = written(folder)
    with subprocess.Popen(program, **how, preexec_fn=heed) as child:
        while written(folder) == before and child.poll() is None:
            time.sleep(0.01)
        if child.poll() is None:
            os.killpg(child.pid, sent)
        child.communicate()
    return child.returncode


def written(folder):
    """When the last checkpoint was; None if there is none."""
    path = folder / "run" / LAST
    return path.stat().st_mtime_ns if path.exists() else None
