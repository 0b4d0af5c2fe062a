"""How a run begins, whatever it learns: whose folder it is, what is left when it fails, what is written in the end."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from linattn_ref.experiments.learning import learn, runs
from linattn_ref.training import folder, loop

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))
import small_run


def ready(**more):
    """A run of a second."""
    facts = {"attention": "none", **more.pop("facts", {})}
    said = more.pop("said", lambda run, params: [f"{run.facts['attention']}, {run.after}"])
    return learn.Ready(small_run.TASK, small_run.START, small_run.settings(), facts, said, **more)


def test_what_is_measured_in_the_end_is_in_the_record(tmp_path):
    told = []
    measured = {"right": 0.5, "said": "ɪt"}
    begin = lambda share: ready(ended=lambda params: learn.result(**measured), notes=(f"a {share} is left out",))  # noqa: E731
    learned = learn.run(begin, tmp_path / "run", command="x", say=told.append, share="third")
    assert told == ["a third is left out"]
    assert learned.run.facts == {**runs.read(tmp_path / "run").facts}
    assert learned.run.facts["result"] == measured
    assert {"command": "x", "seed": 7, "steps": 40, "attention": "none"}.items() <= learned.run.facts.items()
    assert [*learned.ready.said(learned.run, learned.params)] == ["none, after 40 steps and 0 CPU seconds"]
    np.testing.assert_array_equal(learned.params.inner.w, learn.run(ready, tmp_path / "same").params.inner.w)


def test_others_are_kept_out_from_the_beginning_to_the_end(tmp_path):
    """While it reads, which takes minutes, and when it writes what it has measured; not when it has ended."""
    code = (
        "import sys; from linattn_ref.training.folder import Path, check_folder as c; c(Path(sys.argv[1]), resume=True)"
    )
    told = []

    def look(params=None):
        done = subprocess.run([sys.executable, "-c", code, tmp_path / "run"], capture_output=True, text=True)
        told.append(done.stderr.strip().rpartition("\n")[2])
        return {}

    def begin():
        look()
        return ready(ended=look)

    learn.run(begin, tmp_path / "run")
    look()
    assert ["out: another run is writing in" in said for said in told] == [True, True, False]
    assert told[-1] == ""


def test_of_what_failed_before_it_began_nothing_is_left(tmp_path):
    def begin():
        raise ValueError("no such text")

    for out, names in ((tmp_path / "new", None), (tmp_path / "old", [folder.LOCK])):
        if names:
            out.mkdir()
        with pytest.raises(ValueError, match="no such text"):
            learn.run(begin, out)
        assert (sorted(path.name for path in out.iterdir()) if out.exists() else None) == names


def test_in_the_folder_of_another_run_nothing_is_begun(tmp_path):
    """Neither where that has learned something, nor where it was only begun; its own it may begin anew."""
    out = tmp_path / "run"

    def stopped(steps):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn.run(ready, out, watch=lambda ready: loop.Watch(stopped))
    before = (out / folder.RECORD).read_bytes()
    for resume in (False, True):
        with pytest.raises(
            ValueError, match=r"out: another run was begun in .*: attention \(there 'none', here 'all'\)"
        ):
            learn.run(lambda: ready(facts={"attention": "all"}), out, resume=resume)
    assert (out / folder.RECORD).read_bytes() == before
    learn.run(ready, out, command="in other words")

    def begin():
        pytest.fail("read")

    with pytest.raises(ValueError, match=r"out: .* has the last\.safetensors of a run; resume that one"):
        learn.run(begin, out)
