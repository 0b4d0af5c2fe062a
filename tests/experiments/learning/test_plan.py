"""Plans of many runs: what they say, what is missing, and that a killed worker's run goes on elsewhere."""

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numba
import numpy as np
import pytest

from linattn_ref import cli
from linattn_ref.experiments.learning import learn, options, plan, runs
from linattn_ref.experiments.learning.tasks import TASKS, module_of
from linattn_ref.training import checkpoint
from linattn_ref.training.folder import LAST, RECORD, RESULT, TIMES

PLANS = sorted(Path(plan.__file__).parent.glob("*.toml"))
SMALL = """
[copying]
task = "duplication"
claim = "It copies."
yes = "The loss falls."
no = "It does not."
hours = 0.5
seeds = [0, 1]
each = { attention = ["linear", "softmax"] }
options = { width = 16, layers = 1, length = 12, batch = 4, steps = 40 }
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_the_commands_of_a_committed_plan_are_understood(path):
    planned, parser = plan.read(path), cli.parser()
    assert len({one.name for one in planned}) == len(planned) > 5
    for one in planned:
        program, *words = shlex.split(plan.command(one, Path("out")))
        arguments = parser.parse_args(words)
        assert program == "linattn-ref"
        assert (arguments.seed, arguments.out) == (one.seed, Path("out") / one.name)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("[copying]", "copying", "is not TOML"),
        (SMALL, "", "has no question"),
        (
            SMALL,
            "copying = 3",
            r"\[copying\]: expected a table of claim, yes, no, task, hours, seeds, each, options, got 3",
        ),
        ('yes = "The loss falls."\n', "", "expected a table of claim, yes"),
        ("hours = 0.5", 'hours = "x"', r"\[copying\]: hours: expected a float, got 'x'"),
        ('"duplication"', '"copying"', "task: expected one of characters, duplication"),
        ("hours = 0.5", "hours = nan", "hours: expected a number above 0, got nan"),
        ("[0, 1]", "[]", r"seeds: expected different whole numbers of at least 0, got \[\]"),
        ("[0, 1]", "[0, 0]", "seeds: expected different"),
        ("[0, 1]", "[0, true]", "seeds: expected different"),
        ('["linear", "softmax"]', '"softmax"', "attention: expected a list of values, got 'softmax'"),
        ('["linear", "softmax"]', "[]", "attention: expected a list of values"),
        ('["linear", "softmax"]', '["linear", "nope"]', "attention: expected one of softmax, linear"),
        ("[copying]", '["../up"]', "a run's name is that of its folder, and cannot be '../up-linear-0'"),
        ("width = 16", 'width = "x"', "width: expected a whole number, got 'x'"),
        ("width = 16", "width = 16.0", "width: expected a whole number, got 16.0"),
        ("steps = 40", "steps = 0", "steps: expected a whole number of at least 1, got 0"),
        ("width", "breadth", r"\[copying\]: breadth: expected, once, one of steps, attention, reduce_after, width"),
        ("width = 16", 'attention = "linear"', "attention: expected, once"),
        ("hours", 'start = "copying"\nhours', "start: no run of duplication can go on from a run 'copying-0' above"),
        ('"duplication"', '"characters"', "width: expected, once, one of steps, text, attention, peak$"),  # no --width
    ],
)
def test_what_is_no_plan_is_told(small, old, new, error):
    small.write_text(SMALL.replace(old, new))
    with pytest.raises(ValueError, match=error):
        plan.read(small)


def begin(*_, **options):
    """As `learn.run`: two steps of a run that says what was asked."""
    folder = options["out"]
    assert {path.name for path in folder.iterdir()} == {runs.PLAN}  # before it begins
    facts = {"facts": {"command": options["command"], "seed": options["seed"], "steps": 40}}
    lines = [facts, {"step": 40, "loss": 0.5 + options["seed"]}]
    (folder / RECORD).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / TIMES).write_text('{"step": 40, "cpu_seconds": 1}\n')
    checkpoint.save(folder / LAST, (), {"step": 40})
    return learn.Learned(None, runs.read(folder), None)


def test_what_is_missing_is_run_and_its_record_says_what_was_asked_before(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(plan.learn, "run", lambda _, out, **options: begin(out=out, **options))
    words = ["train", "--plan", str(small), "--plan-out", str(tmp_path / "runs")]
    assert cli.main([*words, "--only", "copying-linear"]) == 0
    told = capsys.readouterr()
    assert told.err.splitlines() == [
        "2 of 2 runs are left: about 1.0 hours, 1 at a time",
        "copying-linear-0: loss 0.5 after 40 steps and 1 CPU seconds",
        "copying-linear-1: loss 1.5 after 40 steps and 1 CPU seconds",
    ]
    for path in (tmp_path / "runs").glob(f"*/{LAST}"):
        path.unlink()  # what is kept of a run that has come to its end is its record
    assert cli.main(words) == 0
    assert "2 of 4 runs are left: about 1.0 hours, 1 at a time\ncopying-softmax-0" in capsys.readouterr().err
    assert cli.main([*words, "--list"]) == 0
    assert [line.split(": ")[1] for line in capsys.readouterr().out.splitlines()] == ["40 steps, about 0.5 hours"] * 4
    found = runs.gather(tmp_path / "runs", tmp_path / "all.json")
    assert found["copying-softmax-1"].facts["plan"] == {
        "claim": "It copies.",
        "yes": "The loss falls.",
        "no": "It does not.",
    }
    small.write_text(SMALL.replace("The loss falls.", "Anything."))
    assert cli.main(words) == 2
    assert "plan.json says otherwise what would count, and was there before" in capsys.readouterr().err


def test_a_word_that_is_none_of_an_options_is_told(small):
    """Before hours of training; these are in the annotation, not in the description."""
    of_text = re.sub(r"each = .*", 'each = { attention = ["linformer"] }', SMALL.replace("duplication", "mlm"))
    small.write_text(re.sub(r"options = .*", 'options = { sharing = "nonsense" }', of_text))
    with pytest.raises(ValueError, match="sharing: expected one of none, headwise, "):
        plan.read(small)


def test_a_run_has_one_thread_and_gives_the_others_back(monkeypatch, tmp_path):
    before, seen = numba.get_num_threads(), []

    def run(*_, **__):
        seen.append(numba.get_num_threads())
        raise KeyboardInterrupt

    monkeypatch.setattr(learn, "run", run)
    with pytest.raises(KeyboardInterrupt):
        plan.run_one("duplication", 0, {}, str(tmp_path), "")
    assert (seen, numba.get_num_threads()) == ([1], before)


def test_two_runs_of_one_name_are_told(small):
    each = 'each = { attention = ["linear", "softmax"] }'
    small.write_text(SMALL + SMALL.replace("[copying]", "[copying-linear]").replace(each, "each = {}"))
    with pytest.raises(ValueError, match=r"\[copying-linear\]: the plan has a run copying-linear-0 already"):
        plan.read(small)


STARTED = """
[first]
task = "finetune"
claim = "It learns."
yes = "The loss falls."
no = "It does not."
hours = 0.1
seeds = [0, 1]
each = {}
options = { steps = 40 }

[then]
task = "finetune"
claim = "It goes on."
yes = "The loss falls."
no = "It does not."
hours = 0.1
seeds = [1]
start = "first"
each = { attention = ["linear", "softmax"] }
options = { steps = 40 }
"""


def test_a_run_waits_for_that_which_it_goes_on_from(small, tmp_path, monkeypatch):
    small.write_text(STARTED)
    begun = []

    def run(_, out, **options):
        begun.append((out.name, options.get("start_from")))
        done = begin(out=out, **options)
        (out / RESULT).write_text("{}")
        return done

    monkeypatch.setattr(plan.learn, "run", run)
    with pytest.raises(ValueError, match="only: then-linear-1, then-softmax-1 would go on from first-1, which has not"):
        plan.run(small, tmp_path, only="then")
    assert begun == []
    plan.run(small, tmp_path, only="first-1")
    plan.run(small, tmp_path, only="then-linear")
    plan.run(small, tmp_path)
    start = tmp_path / "first-1"
    assert begun == [("first-1", None), ("then-linear-1", start), ("first-0", None), ("then-softmax-1", start)]
    _, *words = shlex.split(runs.read(tmp_path / "then-linear-1").facts["command"])
    assert cli.parser().parse_args(words).start_from == start


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("seeds = [1]", "seeds = [2]"),  # no such run
        ('start = "first"', 'start = "then"'),  # not above it
        ('[first]\ntask = "finetune"', '[first]\ntask = "images"'),
        ("hours = 0.1\nseeds = [0, 1]", 'start = "first"\nhours = 0.1\nseeds = [0, 1]'),
    ],
)
def test_what_a_run_cannot_go_on_from_is_told(small, old, new):
    small.write_text(STARTED.replace(old, new))
    with pytest.raises(ValueError, match="start: no run of finetune can go on from a run"):
        plan.read(small)


def test_a_run_that_was_begun_before_is_not_taken_for_one_of_the_plan(small, tmp_path):
    (tmp_path / "runs" / "copying-linear-0").mkdir(parents=True)
    (tmp_path / "runs" / "copying-linear-0" / RECORD).write_text("{}")
    with pytest.raises(ValueError, match="has a run that was begun before it was said what would count"):
        plan.run(small, tmp_path / "runs")
    assert [path.name for path in (tmp_path / "runs").glob("*/*")] == [RECORD]


def test_a_run_without_its_checkpoint_begins_anew(small, tmp_path):
    one, folder = plan.read(small)[0], tmp_path / "copying-linear-0"
    folder.mkdir()
    (folder / RECORD).write_text('{"facts": {"steps": 40}}\n{"step": 39, "loss": 1}\n')
    assert plan.steps_done(one, tmp_path) == 0
    checkpoint.save(folder / LAST, (), {"step": 39})
    assert plan.steps_done(one, tmp_path) == 39


def test_a_run_killed_between_its_last_line_and_its_last_checkpoint_goes_on(small, tmp_path):
    one, folder = plan.read(small)[0], tmp_path / "copying-linear-0"
    folder.mkdir()
    (folder / RECORD).write_text('{"facts": {"steps": 40}}\n{"step": 20, "loss": 2}\n{"step": 40, "loss": 1}\n')
    checkpoint.save(folder / LAST, (), {"step": 20})
    assert plan.missing([one], tmp_path) == [one]


def test_a_run_without_its_test_has_not_come_to_its_end(small, tmp_path, monkeypatch):
    one, folder = plan.read(small)[0], tmp_path / "copying-linear-0"
    folder.mkdir()
    (folder / RECORD).write_text('{"facts": {"steps": 40}}\n{"step": 40, "loss": 1}\n')
    assert plan.missing([one], tmp_path) == []
    monkeypatch.setattr(plan, "TESTED", {one.task})
    assert plan.missing([one], tmp_path) == [one]
    (folder / RESULT).write_text("{}")
    assert plan.missing([one], tmp_path) == []


def test_tasks_that_end_with_a_test_are_known():
    """They are those that write a result."""
    folder = Path(plan.__file__).parent
    tasks = [path.stem for path in folder.glob("*.py") if "\ndef begin(" in path.read_text(encoding="utf-8")]
    assert {x for x in tasks if "return result(" in (folder / f"{x}.py").read_text(encoding="utf-8")} == plan.TESTED


def test_tasks_that_go_on_from_a_folder_are_known():
    found = [(task, name, option) for task in TASKS for name, *_, option in options.options_of(module_of(task))]
    found = {task for task, name, option in found if name == "start_from" and option.metavar == "DIR"}
    assert found == plan.GO_ON


def test_a_plan_or_a_task_has_to_be_given(small, capsys):
    assert cli.main(["train"]) == 2
    assert "train: what? Give a task (characters, duplication, " in capsys.readouterr().err
    assert cli.main(["train", "--plan", str(small), "--only", "no"]) == 2
    assert "only: no run of" in capsys.readouterr().err


def weights(folder):
    return {path.parent.name: path.read_bytes() for path in folder.glob(f"*/{LAST}")}


@pytest.mark.slow  # kernels of whole networks in float32
def test_two_processes_make_the_same_runs_as_one_after_the_other(small, tmp_path):
    plan.run(small, tmp_path / "two", workers=2)
    plan.run(small, tmp_path / "one")
    for name, run in runs.read_all(tmp_path / "one").items():
        np.testing.assert_array_equal(run.curves["loss"], runs.read(tmp_path / "two" / name).curves["loss"])


@pytest.mark.slow
def test_a_run_of_a_killed_worker_goes_on_elsewhere_from_its_checkpoint(small, tmp_path, cluster):
    small.write_text(SMALL.replace('["linear", "softmax"]', '["linear"]').replace("steps = 40", "steps = 800"))
    first, out = cluster.start_worker(), tmp_path / "cluster-runs"
    words = ["train", "--plan", str(small), "--plan-out", str(out), "--dask", cluster.address]
    job = subprocess.Popen([sys.executable, "-m", "linattn_ref", *words], stderr=subprocess.PIPE, text=True)
    while not weights(out):
        assert job.poll() is None, job.communicate()
        time.sleep(0.05)
    first.kill()
    begun = weights(out)
    cluster.wait_for_worker(cluster.start_worker())
    _, told = job.communicate(timeout=300)
    assert job.returncode == 0, told
    assert begun
    plan.run(small, tmp_path / "alone")
    for name, run in runs.read_all(tmp_path / "alone").items():
        there = runs.read(out / name)
        np.testing.assert_array_equal(there.curves["loss"], run.curves["loss"])
        assert there.facts["command"] == plan.command(plan.read(small)[int(name[-1])], out)


def test_a_run_of_other_options_is_no_answer(small, tmp_path):
    """One that had fewer steps goes on."""
    name = "copying-linear-0"
    for said, fits in (({"width": 16}, True), ({"width": 128}, False), ({"steps": 50}, False), ({"steps": 30}, True)):
        folder = tmp_path / str(said) / name
        folder.mkdir(parents=True)
        facts = {"facts": {"seed": 0, "steps": 40, "k": None, "shape": {"width": 16} | said} | said}
        folder.joinpath(RECORD).write_text("\n".join(map(json.dumps, (facts, {"step": 40, "loss": 0.5}))) + "\n")
        one = next(one for one in plan.read(small) if one.name == name)
        if fits:
            plan._check_options(one, folder)
        else:
            ((key, value),) = said.items()
            with pytest.raises(ValueError, match=f"has a run of {key} = {value}, and the plan says"):
                plan._check_options(one, folder)


@pytest.mark.parametrize(
    ("task", "options", "said"),
    [
        ("mlm", 'k = 0, text = "a.txt"', {"k": 32, "text": {"name": "a.txt"}}),  # a quarter of the length
        ("finetune", 'model = "a", data = "b.csv"', {"model": "4fa2", "data": {"source": "imdb"}}),
    ],
)
def test_a_record_says_of_a_file_what_is_in_it(small, tmp_path, task, options, said):
    """The same plan is run again."""
    small.write_text(re.sub("options = .*", f"options = {{ {options} }}", SMALL.replace('"duplication"', f'"{task}"')))
    (tmp_path / RECORD).write_text(json.dumps({"facts": {"steps": 40, **said}}) + "\n")
    plan._check_options(plan.read(small)[0], tmp_path)


def test_what_an_option_leaves_out_is_no_word(small):
    task = SMALL.replace('"duplication"', '"finetune"')
    small.write_text(task.replace("width = 16, layers = 1, ", "fitted = false, "))
    assert "fitted" not in plan.command(plan.read(small)[0], Path("out"))
