"""A run gives the same numbers however often it was stopped, and stops by itself when they are none any more."""

import json
import random
import re
import signal
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).parent))
import small_run

from linattn_ref.nested import map_arrays
from linattn_ref.nn import feed_forward
from linattn_ref.training import checkpoint, clip, failure, folder, loop, parameters, sgd


def run(out, *, facts=small_run.FACTS, resume=False, task=small_run.TASK, **changed):
    return loop.run(task, small_run.START, small_run.settings(**changed), out, facts=facts, resume=resume)


def content(out):
    """All that is the same each time."""
    return {path.name: path.read_bytes() for path in out.iterdir() if path.name[0] != "." and path.name != folder.TIMES}


def test_it_learns_and_the_record_says_so(tmp_path):
    run(tmp_path, steps=200, every=50)
    facts, *lines = folder.read_record(tmp_path)
    assert facts == {"facts": small_run.FACTS}
    assert [line["step"] for line in lines] == [50, 100, 150, 200]
    assert lines[-1]["training_loss"] < lines[0]["training_loss"]
    best = checkpoint.load(tmp_path / "best.safetensors")
    assert float(best.facts["best"]) == min(line["loss"] for line in lines)


@pytest.mark.parametrize("weigh", [None, len])
def test_batches_of_a_step_count_by_what_they_have(tmp_path, weigh):
    """Three rows and five in two batches, or eight in one: the same step if they are weighed, another if not."""
    rows = np.random.default_rng(3).standard_normal((2, 8, 3))

    def learn(params, given, share):
        x, goal = given.transpose(1, 0, 2)
        y, saved = feed_forward.forward(x, params)
        d_y = 2 * share * (y - goal) / len(x)  # of the mean over the rows
        return share * np.square(y - goal).sum() / len(x), feed_forward.backward(d_y, saved).params

    def parameters_after(name, parts):
        task = loop.Task(learn, lambda _: next(parts), lambda _: {"loss": 0.0}, weigh=weigh)
        start, how = feed_forward.draw(3, 5, np.random.default_rng(0)), small_run.settings(optimiser=sgd, steps=1)
        how = how._replace(accumulate=len(rows_of), every=1)
        found = loop.run(task, start, how, tmp_path / name, facts=small_run.FACTS)
        return parameters.flatten(found)[0], folder.read_record(tmp_path / name)[-1]["training_loss"]

    given = rows.transpose(1, 0, 2)  # (8, 2, 3)
    rows_of = [given]
    whole = parameters_after("whole", cycle(rows_of))
    rows_of = [given[:3], given[3:]]
    parts = parameters_after("parts", cycle(rows_of))
    same = [np.allclose(a, b, rtol=1e-12, atol=0) for a, b in zip(whole, parts, strict=True)]
    assert same == [weigh is len] * 2


def test_the_rate_goes_by_what_evaluations_found(tmp_path):
    """Each line has the rate that its last step was taken with; a run that is resumed knows what was found before."""

    def factor(lines):
        return 0.5 ** len(lines)

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    how = {"every": 3, "factor": factor, "learning_rate": lambda t: 0.02}
    run(whole, steps=12, **how)
    assert [line["rate"] for line in folder.read_record(whole)[1:]] == [0.02, 0.01, 0.005, 0.0025]
    run(parts, steps=6, **how)
    run(parts, steps=12, **how, resume=True)
    assert content(parts) == content(whole)


def test_runs_of_neighbouring_seeds_share_no_batch(tmp_path):
    """As they would if step ``t`` of seed ``s`` drew what step ``t + 1`` of seed ``s - 1`` draws."""
    drawn = {}
    for seed in (7, 8, 9):
        drawn[seed] = []

        def batch(rng, seen=drawn[seed]):
            seen.append(rng.standard_normal((4, 3)))
            return seen[-1]

        run(tmp_path / str(seed), task=small_run.TASK._replace(batch=batch), seed=seed, steps=6)
    values = {seed: {float(x) for one in batches for x in one.flat} for seed, batches in drawn.items()}
    assert [len(found) for found in values.values()] == [6 * 2 * 12] * 3  # no two alike within a run either
    assert not values[7] & values[8]
    assert not values[8] & values[9]


def test_gradients_that_share_memory_are_refused(tmp_path):
    """Each would get what is added to the other, and be made shorter with it."""

    def learn(params, x, share):
        loss, grads = small_run.learn(params, x, share)
        return loss, grads._replace(outer=grads.outer._replace(b=grads.outer.w[0]))

    with pytest.raises(ValueError, match=r"^grads\.outer\.b: shares memory with grads\.outer\.w; expected"):
        run(tmp_path, task=small_run.TASK._replace(learn=learn))


@pytest.mark.parametrize("each", [False, True])
def test_a_gradient_is_clipped_as_one_or_each_array_by_itself(tmp_path, each):
    """A step of plain descent shows how much of each was left; one is short enough by itself."""
    slopes = feed_forward.Params(*(layer._replace(w=0 * layer.w, b=0 * layer.b) for layer in small_run.START))
    for array, number in ((slopes.inner.w, 3.0), (slopes.inner.b, 0.1), (slopes.outer.b, -2.0)):
        array[...] = number

    def learn(params, x, share):
        return share, map_arrays(lambda slope: share * slope, slopes)

    def norm(*arrays):
        return np.sqrt(sum(np.square(array).sum() for array in arrays))

    how = {
        "optimiser": sgd,
        "steps": 1,
        "every": 1,
        "learning_rate": lambda t: 0.5,
        "clip": 1.0,
        "clipped": clip.each if each else clip.by_global_norm,
    }
    found = run(tmp_path, task=small_run.TASK._replace(learn=learn), **how)
    whole = norm(*(slope for _, slope in parameters.leaves(slopes)))
    of_three = map(parameters.leaves, (found, small_run.START, slopes))
    for (name, after), (_, before), (_, slope) in zip(*of_three, strict=True):
        kept = min(1.0, 1 / ((norm(slope) if each else whole) + 1e-6))
        np.testing.assert_allclose(before - after, 0.5 * kept * slope, rtol=1e-12, atol=1e-15, err_msg=name)
    assert folder.read_record(tmp_path)[-1]["norm"] == pytest.approx(whole)  # what it was before


def test_killed_at_any_moment_it_goes_on_to_the_same_numbers(tmp_path):
    """kill -9, again and again, until it comes to its end; the bytes are those of a run that never stopped."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(whole)
    chance, kills = random.Random(0), 0
    program = [sys.executable, small_run.__file__, str(killed), "--resume"]
    while True:
        child = subprocess.Popen(program)
        try:
            child.wait(timeout=0.4 + 0.6 * chance.random() if kills < 2 else 60)  # a whole run takes over a second
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.wait()
            kills += 1
            continue
        assert child.returncode == 0
        break
    assert kills > 0
    assert content(killed) == content(whole)


def stop_at(step):
    """The task, stopped as it draws the first batch of a step."""
    calls = iter(range(10**6))

    def batch(rng):
        if next(calls) == 2 + 2 * step:  # the first step is taken once before the clock
            raise KeyboardInterrupt
        return small_run.batch(rng)

    return small_run.TASK._replace(batch=batch)


def test_resume_in_the_middle_gives_the_same_bytes(tmp_path):
    """Stopped at each step in turn."""
    whole = tmp_path / "whole"
    run(whole, steps=12)
    for step in range(0, 12, 3):
        out = tmp_path / str(step)
        with pytest.raises(KeyboardInterrupt):
            run(out, steps=12, task=stop_at(step))
        run(out, steps=12, resume=True)
        assert content(out) == content(whole)


def test_stopped_between_two_files_it_gives_the_same_bytes(tmp_path, monkeypatch):
    """Before each checkpoint in turn: what is best and what is last are two files."""
    save, whole = checkpoint.save, tmp_path / "whole"
    run(whole, steps=6, every=2)
    for before in range(6):
        out, left = tmp_path / str(before), iter([save] * before)
        monkeypatch.setattr(checkpoint, "save", lambda *given, left=left: next(left)(*given))
        with pytest.raises(StopIteration):
            run(out, steps=6, every=2)
        monkeypatch.setattr(checkpoint, "save", save)
        run(out, steps=6, every=2, resume=True)
        assert content(out) == content(whole)


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"seed": 8}, "seed (there 7, here 8)"),
        ({"width": 3}, "width (there nothing, here 3)"),
        ({"shape": {"heads": 2, "layers": 1}}, "shape.layers (there 4, here 1)"),
        ({"steps": 3}, "steps (there 4, here 3)"),
    ],
)
def test_other_settings_cannot_be_resumed(tmp_path, facts, told):
    """Each that differs is told with both values."""
    whole = {**small_run.FACTS, "steps": 4, "shape": {"heads": 2, "layers": 4}}
    run(tmp_path, steps=4, facts=whole)
    before = content(tmp_path)
    with pytest.raises(ValueError, match=rf"resume: the run in .* is one with other settings: {re.escape(told)}$"):
        run(tmp_path, steps=8, resume=True, facts={**whole, **facts})
    assert content(tmp_path) == before


def test_fewer_steps_than_a_run_has_taken_are_refused(tmp_path):
    run(tmp_path, steps=8)
    with pytest.raises(ValueError, match=r"steps: the run in .* has come to step 8 already, got 4"):
        run(tmp_path, steps=4, resume=True)


# --- Longer than it was meant to be ---------------------------------------------------------------------------------


def of_length(steps, command="small run"):
    """Facts and settings; rates that go by the number of steps."""
    facts = {**small_run.FACTS, "steps": steps, "command": command}
    return {"facts": facts, "steps": steps, "learning_rate": lambda t: 0.02 * (1 - t / steps)}


def test_a_run_that_has_come_to_its_end_can_be_lengthened(tmp_path):
    """The record says how; stopped in between it comes to the same bytes; the result of the end before it is gone."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for out in (whole, stopped):
        run(out, **of_length(8))
        (out / folder.RESULT).write_text("{}")
    run(whole, **of_length(20, "longer"), resume=True)
    for step in (0, 5):  # before its first checkpoint, and after one
        with pytest.raises(KeyboardInterrupt):
            run(stopped, **of_length(20, "longer"), task=stop_at(step), resume=True)
    run(stopped, **of_length(20, "longer"), resume=True)
    assert content(stopped) == content(whole)
    assert folder.RESULT not in content(whole)
    (said,), lines = folder.read_record(whole)[:1], folder.read_record(whole)[1:]
    assert said["facts"] == {**small_run.FACTS, "steps": 20, "lengthened": [{"from": 8, "command": "longer"}]}
    assert [line["step"] for line in lines] == [4, 8, 12, 16, 20]
    np.testing.assert_allclose([line["rate"] for line in lines], [0.0125, 0.0025, 0.009, 0.005, 0.001], rtol=1e-12)


def test_a_run_that_has_not_come_to_its_end_cannot_be_lengthened(tmp_path):
    """What it learned would depend on when it was stopped."""
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, **of_length(8), task=stop_at(5))
    with pytest.raises(
        ValueError, match=r"steps \(there 8, here 20\); it can be lengthened once it has come to its end"
    ):
        run(tmp_path, **of_length(20), resume=True)


# --- Two at once, and files that are lost ---------------------------------------------------------------------------


def test_a_second_run_in_a_folder_is_refused_until_the_first_is_gone(tmp_path):
    """Killed by kill -9 in the end."""
    program = [sys.executable, small_run.__file__, str(tmp_path)]
    with subprocess.Popen(program) as first:
        try:
            while not (tmp_path / folder.RECORD).exists() and first.poll() is None:
                time.sleep(0.01)
            for resume in (False, True):
                with pytest.raises(ValueError, match=r"out: another run is writing in .*; let it end, or give another"):
                    run(tmp_path, resume=resume)
                with pytest.raises(ValueError, match="out: another run is writing in"):
                    folder.check_folder(tmp_path, resume=resume)
        finally:
            first.send_signal(signal.SIGKILL)
    folder.check_folder(tmp_path, resume=True)
    run(tmp_path, resume=True)
    assert folder.read_record(tmp_path)[-1]["step"] == 40


@pytest.mark.parametrize("left", [None, b"", b'{"facts": {}}\n', b"[]\n{}\n", b"\0" * 300])
def test_without_the_record_it_does_not_go_on(tmp_path, left):
    """A rate may go by what is in it. Nothing else is altered."""
    run(tmp_path, steps=8)
    record = tmp_path / folder.RECORD
    record.unlink()
    if left is not None:
        record.write_bytes(left)
    before = content(tmp_path)
    with pytest.raises(ValueError, match=r"record\.jsonl (is missing or ends at step 0, and)|damaged, or no record of"):
        run(tmp_path, steps=12, resume=True)
    assert content(tmp_path) == before


@pytest.mark.parametrize("empty", [False, True])
def test_without_its_times_it_goes_on_and_they_are_unknown(tmp_path, empty):
    run(tmp_path / "whole", steps=12)
    run(tmp_path / "parts", steps=8)
    times = tmp_path / "parts" / folder.TIMES
    times.unlink()
    if empty:
        times.touch()
    run(tmp_path / "parts", steps=12, resume=True)
    assert content(tmp_path / "parts") == content(tmp_path / "whole")
    unknown = [{"step": step, "cpu_seconds": None} for step in (4, 8, 12)]
    assert folder.read_times(tmp_path / "parts") == unknown


def test_the_command_may_be_written_otherwise(tmp_path):
    """In another order, say; the record keeps the one that the run began with."""
    run(tmp_path / "whole", steps=8)
    run(tmp_path / "parts", steps=4)
    run(tmp_path / "parts", steps=8, resume=True, facts={**small_run.FACTS, "command": "run, small"})
    assert content(tmp_path / "parts") == content(tmp_path / "whole")


def test_a_rate_that_is_none_leaves_a_former_run(tmp_path):
    run(tmp_path, steps=4)
    before = content(tmp_path)
    with pytest.raises(ValueError, match="learning_rate: expected a finite number of at least 0, got nan"):
        run(tmp_path, steps=4, learning_rate=lambda t: np.nan)
    assert content(tmp_path) == before


def test_what_a_run_has_learned_is_not_written_over(tmp_path):
    """Not even by the same run, unless it is resumed; one that was stopped before its first checkpoint is."""
    run(tmp_path / "whole", steps=8)
    before = content(tmp_path / "whole")
    with pytest.raises(ValueError, match=r"out: .*whole has the last\.safetensors of a run; resume that one"):
        run(tmp_path / "whole", steps=8)
    assert content(tmp_path / "whole") == before
    (tmp_path / "whole" / folder.LAST).unlink()
    with pytest.raises(ValueError, match=r"out: .*whole has the best\.safetensors of a run"):
        run(tmp_path / "whole", steps=8)
    (tmp_path / "whole" / folder.RESULT).write_text("{}")
    with pytest.raises(ValueError, match=r"resume: .* has the result\.json of a run, and no last\.safetensors"):
        run(tmp_path / "whole", steps=8, resume=True)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "new", steps=12, task=stop_at(1))
    assert set(content(tmp_path / "new")) == {folder.RECORD}
    run(tmp_path / "new", steps=8)
    assert content(tmp_path / "new") == before


def test_what_is_compiled_in_the_first_step_is_not_counted(tmp_path):
    """A first call that takes a fifth of a second."""
    slow = iter([True])

    def learn(*args):
        if next(slow, False):
            until = time.process_time() + 0.2
            while time.process_time() < until:
                pass
        return small_run.TASK.learn(*args)

    run(tmp_path, steps=2, every=1, task=small_run.TASK._replace(learn=learn))
    assert next(slow, None) is None
    assert folder.read_times(tmp_path)[-1]["cpu_seconds"] < 0.2


def test_a_number_that_is_none_stops_it_and_names_where(tmp_path):
    def learn(params, x, share):
        loss, grads = small_run.learn(params, x, share)
        if len(folder.read_record(tmp_path)) == 2:
            grads.outer.b[0] = np.nan
        return loss, grads

    with pytest.raises(loop.TrainingError, match=r"step 4: the loss is .* and the gradient of outer\.b is the first"):
        run(tmp_path, task=small_run.TASK._replace(learn=learn))
    found = checkpoint.load(tmp_path / "last.safetensors")
    assert found.facts["step"] == 4
    assert all(np.isfinite(x).all() for x in found.arrays.values())


@pytest.mark.parametrize("wrong", [0, 1])
def test_the_layer_where_numbers_cease_is_named(tmp_path, wrong):
    """By what forward passes save: all gradients are no numbers then, whichever layer and batch of the step it was."""
    rng = np.random.default_rng([small_run.FACTS["seed"], 0])
    drawn = [small_run.batch(rng) for _ in range(2)]

    def batch(rng):
        x = small_run.batch(rng)
        return x * np.nan if np.array_equal(x, drawn[wrong]) else x

    def look(params, x):
        return small_run.feed_forward.forward(x, params)[1]

    named = r"step 0: the loss is nan, and inner\.x is the first that is NaN or infinite on the way forward"
    with pytest.raises(loop.TrainingError, match=named):
        run(tmp_path, task=small_run.TASK._replace(look=look, batch=batch))


class Three(NamedTuple):
    a: np.ndarray
    b: np.ndarray
    c: np.ndarray


FINE, INF, NAN, WRONG = (1, 1, 1), np.inf, np.nan, "that is NaN or infinite"


@pytest.mark.parametrize(
    ("loss", "norm", "params", "saved", "grads", "told"),
    [
        (11, 1, FINE, FINE, (1, -5, 2), "the loss exploded, from 0.5 to 11, and b has the largest gradient"),
        (2, INF, FINE, FINE, (1, -5, 2), "the norm of the gradient is infinite, and b has the largest gradient"),
        (NAN, 1, (1, NAN, INF), (NAN, 1, 1), FINE, "the loss is nan, and b is NaN or infinite"),
        (
            INF,
            1,
            FINE,
            (-INF, NAN, INF),
            (1, 1, NAN),
            f"the loss is inf, and b is the first {WRONG} on the way forward",
        ),
        (
            2,
            NAN,
            FINE,
            FINE,
            (1, NAN, INF),
            f"the loss is 2, and the gradient of c is the first {WRONG} on the way back",
        ),
        (INF, 1, FINE, FINE, FINE, "the loss is inf"),
    ],
    ids=["exploded", "norm", "parameter", "forward", "backward", "nowhere"],
)
def test_where_it_fails(loss, norm, params, saved, grads, told):
    params, saved, grads = (Three(*np.array(x, float)[:, None]) for x in (params, saved, grads))
    with pytest.raises(loop.TrainingError) as error:
        failure.check_step(3, loss, norm, 0.5, params, grads, [saved])
    assert str(error.value) == f"step 3: {told}"
    failure.check_step(3, 9.0, 1.0, 0.5, params, grads, [saved])  # of an early loss below 1, 10 times 1


def test_parameters_that_are_none_are_not_saved(tmp_path):
    def evaluate(params):
        return {"loss": np.nan}

    told = "^step 4: the loss of the evaluation is nan; there is no checkpoint yet"  # the line would be of step 4
    with pytest.raises(loop.TrainingError, match=told):
        run(tmp_path, task=small_run.TASK._replace(evaluate=evaluate))
    assert not (tmp_path / "last.safetensors").exists()


def test_what_overflows_is_told_by_the_error_alone(tmp_path):
    """Without NumPy's warnings before it, which are errors in tests."""

    def learn(*args):
        loss, grads = small_run.TASK.learn(*args)
        return loss + np.float64(1e308) * 1e308, grads

    with pytest.raises(loop.TrainingError, match=r"step 0: the loss is inf"):
        run(tmp_path, task=small_run.TASK._replace(learn=learn))


def test_a_loss_that_explodes_stops_it(tmp_path):
    named = r"the loss exploded, from .* to .*, and \w+\.\w has the largest gradient; (the checkpoint|there is)"
    with pytest.raises(loop.TrainingError, match=named):
        run(tmp_path, learning_rate=lambda t: 10.0 * 2**t, steps=100, clip=None)


def test_a_loss_that_explodes_slowly_stops_it_too(tmp_path):
    """Three times the loss with each evaluation: 10 times that of the first is exceeded in step 3."""

    def learn(params, x, share):
        return share * 2 * 3.0 ** (len(folder.read_record(tmp_path)) - 1), small_run.learn(params, x, share)[1]

    with pytest.raises(loop.TrainingError, match=r"^step 3: the loss exploded, from 2 to 54, and "):
        run(tmp_path, task=small_run.TASK._replace(learn=learn), every=1)


@pytest.mark.parametrize("size", [1e153, 3e153, 1e200])
def test_a_gradient_is_clipped_whatever_its_length(size):
    """A square, or the sum of them, leaves the range of float64; arrays without axes and empty ones are among them."""
    grads = [np.array([3 * size, 1]), np.array(4 * size), np.zeros((0, 2))]
    assert clip.by_global_norm(grads, 1.0) == pytest.approx(5 * size, rel=1e-15)
    np.testing.assert_allclose([*grads[0], grads[1]], [0.6, 0, 0.8], atol=1e-12)
    assert clip.each([np.array([3 * size]), np.array([4 * size])], 1.0) == pytest.approx(5 * size, rel=1e-15)


def test_a_norm_beyond_the_range_is_told(tmp_path):
    def learn(params, x, share):
        return share, map_arrays(lambda array: np.full_like(array, 6e307), params)

    with pytest.raises(loop.TrainingError, match=r"step 0: the norm of the gradient is infinite, and \w+\.\w has"):
        run(tmp_path, task=small_run.TASK._replace(learn=learn), optimiser=sgd)


def test_resume_is_true_or_false(tmp_path):
    with pytest.raises(TypeError, match="resume: expected True or False, got 'no'"):
        run(tmp_path, resume="no")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("limit", [0.0, np.nan, "1"])
def test_a_limit_is_a_number_above_0(tmp_path, limit):
    with pytest.raises(ValueError, match=f"^clip: expected a number above 0, got {limit!r}"):
        run(tmp_path, clip=limit)


def test_what_was_left_half_written_is_taken_away(tmp_path):
    run(tmp_path, steps=12)
    (tmp_path / ".last.safetensors.0123456789abcdef.part").write_bytes(b"half")
    (tmp_path / ".notes.part").write_bytes(b"somebody else's")
    run(tmp_path, steps=12, resume=True)
    assert [path.name for path in tmp_path.glob(".*.part")] == [".notes.part"]


def test_a_fact_that_is_no_number_is_the_same_one(tmp_path):
    facts = small_run.FACTS | {"x": float("nan")}
    run(tmp_path, steps=12, facts=facts)
    run(tmp_path, steps=12, facts=facts | {"x": float("nan")}, resume=True)


def test_damage_is_an_error_and_nothing_is_lost(tmp_path):
    run(tmp_path, steps=4)
    before = content(tmp_path)
    last = tmp_path / "last.safetensors"
    last.write_bytes(before["last.safetensors"][:100])
    with pytest.raises(ValueError, match=r"last\.safetensors is no checkpoint, or a damaged one"):
        run(tmp_path, steps=4, resume=True)
    assert content(tmp_path)["record.jsonl"] == before["record.jsonl"]


@pytest.mark.parametrize("name", ["record.jsonl", "times.jsonl"])
@pytest.mark.parametrize("more", [b'{"step": 5, "lo', b"\xff\xfe"])
def test_a_damaged_record_is_named(tmp_path, name, more):
    run(tmp_path, steps=4)
    with (tmp_path / name).open("ab") as file:
        file.write(more)
    before = content(tmp_path)
    with pytest.raises(ValueError, match=rf"{name}: damaged, or no record of a run"):
        run(tmp_path, steps=4, resume=True)
    assert content(tmp_path) == before


@pytest.mark.parametrize("altered", [{}, {"step": None}, {"step": "4"}, {"best": None}, {"facts": [1]}])
def test_a_checkpoint_that_does_not_say_how_far_it_is_is_named(tmp_path, altered):
    run(tmp_path, steps=4)
    path = tmp_path / "last.safetensors"
    found = checkpoint.load(path)
    said = {**found.facts, **altered} if altered else {}
    save_file(found.arrays, path, metadata={checkpoint.FACTS: json.dumps(said)})
    with pytest.raises(ValueError, match=r"last\.safetensors does not say how far its run had come"):
        run(tmp_path, steps=8, resume=True)


def test_a_checkpoint_of_another_model_says_which_array(tmp_path):
    run(tmp_path, steps=4)
    found = checkpoint.load(tmp_path / "last.safetensors")
    _, params = parameters.flatten(small_run.START)
    less = {name: x for name, x in found.arrays.items() if name != "params.outer.w"}
    with pytest.raises(ValueError, match=r"of another model: it lacks params\.outer\.w"):
        checkpoint.restore(params, found._replace(arrays=less), "params")
    with pytest.raises(ValueError, match=r"of another model: it has params\.w"):
        checkpoint.restore(params, found._replace(arrays={"params.w": params.inner.w, **found.arrays}), "params")
    wide = params._replace(inner=params.inner._replace(b=np.zeros(9)))
    with pytest.raises(ValueError, match=r"params\.inner\.b is float64 \(5,\) in it, expected float64 \(9,\)"):
        checkpoint.restore(wide, found, "params")


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    run(tmp_path, steps=4)
    before, write = content(tmp_path), Path.write_bytes

    def full(path, data):
        if "safetensors" in path.name:
            raise OSError(28, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match=r"cannot write: No space left on device.*best\.safetensors"):
        run(tmp_path, steps=8, resume=True)
    assert content(tmp_path)["last.safetensors"] == before["last.safetensors"]
    assert json.loads(content(tmp_path)["record.jsonl"].splitlines()[0]) == {"facts": small_run.FACTS}


def test_a_watch_is_told_how_long_it_takes_and_what_each_evaluation_finds(tmp_path, monkeypatch):
    """And changes no number. By the clock, a step takes 2 seconds and an evaluation 5; there are 40 and 7."""
    seconds, lines, clock = [], [], iter((1.0, 3.0, 8.0))
    clocks = SimpleNamespace(perf_counter=lambda: next(clock), process_time=time.process_time)
    monkeypatch.setattr(loop, "time", clocks)
    watch = loop.Watch(takes=seconds.append, found=lines.append)
    learned = small_run.TASK, small_run.START, small_run.settings(every=6)
    watched = loop.run(*learned, tmp_path / "watched", facts=small_run.FACTS, watch=watch)
    alone = loop.run(*learned, tmp_path / "alone", facts=small_run.FACTS)
    assert seconds == [40 * 2 + 7 * 5]
    assert lines == folder.read_record(tmp_path / "watched")[1:]
    np.testing.assert_array_equal(watched.inner.w, alone.inner.w)
    again = {"facts": small_run.FACTS, "watch": watch, "resume": True}
    loop.run(*learned, tmp_path / "watched", **again)  # it has ended: nobody looks at the clock
    clock = iter((1.0, 3.0, 8.0))
    loop.run(*learned[:2], small_run.settings(every=6, steps=52), tmp_path / "watched", **again)
    assert seconds[1:] == [12 * 2 + 2 * 5]
