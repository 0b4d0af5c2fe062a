"""Each task of ``linattn-ref train``, stopped by a signal, goes on to the bytes of a run that was not stopped."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from linattn_ref.experiments.learning import runs
from linattn_ref.training import loop

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="sends signals to a process group")]

# A word in braces is a fixture, what is learned from. There are steps enough for a signal to come before the last.
TASKS = {
    "characters": ["--text", "{text}", "--steps", "600"],
    "duplication": ["--steps", "600"],
    "finetune": ["--model", "{tiny_model}", "--data", "{data}", "--source", "here", "--steps", "600"],
    "images": ["--collection", "cifar-10", "--data", "{colours}", "--steps", "400", "--every", "40"],
    "mlm": ["--text", "{text}", "--vocabulary", "300", "--attention", "linformer", "--steps", "200"],
    "speech": ["--data", "{recordings}", "--steps", "800"],
}
STOPS = ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL))  # each with the status with which a run then ends


@pytest.mark.parametrize("task", TASKS)
def test_stopped_it_goes_on_to_the_same_bytes(tmp_path, request, task):
    """By Ctrl-C, then by kill -9, each after one more checkpoint; all files but the times are compared."""
    given = [str(request.getfixturevalue(word[1:-1])) if word[0] == "{" else word for word in TASKS[task]]
    program = [sys.executable, "-m", "linattn_ref", "train", task, "--quick", *given, "--resume", "--out", "run"]
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
    path = folder / "run" / loop.LAST
    return path.stat().st_mtime_ns if path.exists() else None


def content(out):
    """What is to be the same; a process that was killed may leave what it was writing, hidden."""
    return {path.name: path.read_bytes() for path in out.glob("[!.]*") if path.name != loop.TIMES}
