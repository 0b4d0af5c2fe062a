"""Measurements taken one by one: each is a file, and a run that was killed goes on."""

import subprocess
import sys

import numpy as np
import pytest

from linattn_ref.experiments.measuring.measurements import measure_all
from linattn_ref.experiments.measuring.spread import spread

SETTINGS = {"lengths": (1, 2)}


def tasks_that_note(done, *, fail_at=None):
    def measure(name, value):
        if name == fail_at:
            raise KeyboardInterrupt
        done.append(name)
        return np.array([value, 0.5])

    return {name: (lambda name=name, value=i: measure(name, value)) for i, name in enumerate(("a", "b", "c"))}


def test_all_are_done_in_order():
    done = []
    found = measure_all(tasks_that_note(done), SETTINGS)
    assert done == list(found) == ["a", "b", "c"]
    assert [list(values) for values in found.values()] == [[0, 0.5], [1, 0.5], [2, 0.5]]


@pytest.mark.parametrize("workers", [-1, 0, 1])
def test_without_workers_it_is_done_here(workers):
    assert list(spread(divmod, [(7, 2), (9, 4)], workers=workers)) == [(3, 1), (2, 1)]


def test_a_run_that_was_interrupted_goes_on(tmp_path):
    before, after = [], []
    with pytest.raises(KeyboardInterrupt):
        measure_all(tasks_that_note(before, fail_at="b"), SETTINGS, parts=tmp_path)
    found = measure_all(tasks_that_note(after), SETTINGS, parts=tmp_path, resume=True)
    assert (before, after) == (["a"], ["b", "c"])
    assert list(found["a"]) == [0, 0.5]


def test_without_resume_it_begins_anew(tmp_path):
    done = []
    measure_all(tasks_that_note(done), SETTINGS, parts=tmp_path)
    measure_all(tasks_that_note(done), SETTINGS, parts=tmp_path)
    assert done == ["a", "b", "c"] * 2


def test_other_settings_are_refused(tmp_path):
    measure_all(tasks_that_note([]), SETTINGS, parts=tmp_path)
    with pytest.raises(ValueError, match=r"resume: .* other settings: lengths was \[1, 2\], is \[3\]"):
        measure_all(tasks_that_note([]), {"lengths": (3,)}, parts=tmp_path, resume=True)


def test_while_another_run_writes_there_nothing_is_begun(tmp_path):
    """Its parts would be cleared away; one and the same run may hold the folder twice."""
    measure_all(tasks_that_note([]), SETTINGS, parts=tmp_path)
    code = "import sys, pathlib; from linattn_ref.training.folder import alone\n"
    code += "with alone(pathlib.Path(sys.argv[1])): print(); input()"
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdin=-1, stdout=-1, text=True) as other:
        other.stdout.readline()
        with pytest.raises(ValueError, match="out: another run is writing in"):
            measure_all(tasks_that_note([]), SETTINGS, parts=tmp_path)
        assert {path.stem for path in tmp_path.glob("*.npy")} == {"a", "b", "c"}
        other.communicate("\n")
    measure_all(tasks_that_note([]), SETTINGS, parts=tmp_path)
