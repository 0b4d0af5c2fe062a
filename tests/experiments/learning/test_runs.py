"""Records of runs, read and gathered. No network: what a run writes is written here."""

import json
from typing import NamedTuple

import numpy as np
import pytest

from linattn_ref import cli
from linattn_ref.data import fetch
from linattn_ref.experiments.learning import runs
from linattn_ref.training import checkpoint


def write_run(folder, losses):
    folder.mkdir(parents=True)
    lines = [{"step": 10 * (i + 1), "loss": loss, "rate": 1e-3} for i, loss in enumerate(losses)]
    record = [{"facts": {"command": "linattn-ref train", "seed": 0, "steps": 10 * len(losses)}}, *lines]
    times = [{"step": line["step"], "cpu_seconds": line["step"] / 4} for line in lines]
    for name, rows in (("record.jsonl", record), ("times.jsonl", times)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_gathered_runs_are_those_that_were_read(tmp_path):
    write_run(tmp_path / "runs" / "linear-0", [2.0, 1.0, 0.5])
    write_run(tmp_path / "runs" / "linear-1", [2.5])
    runs.gather(tmp_path / "runs", tmp_path / "new" / "all.json")
    found = runs.gathered(tmp_path / "new" / "all.json")
    assert list(found) == ["linear-0", "linear-1"]
    for name, run in found.items():
        read = runs.read(tmp_path / "runs" / name)
        assert run.facts == read.facts
        assert list(run.curves) == list(read.curves) == ["loss", "rate"]
        for ours, theirs in zip(
            (run.steps, run.cpu_seconds, *run.curves.values()),
            (read.steps, read.cpu_seconds, *read.curves.values()),
            strict=True,
        ):
            np.testing.assert_array_equal(ours, theirs)


def test_a_long_curve_is_thinned_and_keeps_its_ends(tmp_path):
    write_run(tmp_path / "runs" / "a", np.linspace(3, 1, 250) / 3)
    runs.gather(tmp_path / "runs", tmp_path / "all.json")
    run = runs.gathered(tmp_path / "all.json")["a"]
    assert len(run.steps) == len(run.cpu_seconds) == len(run.curves["loss"]) == runs.MOST
    assert (run.steps[0], run.steps[-1]) == (10, 2500)
    assert run.curves["loss"][-1] == 0.33333


def test_of_a_long_curve_the_training_loss_is_that_of_all_updates(tmp_path):
    """It is a mean since the last evaluation, and of those in between not all are kept."""
    write_run(tmp_path / "runs" / "a", np.ones(250))
    path = tmp_path / "runs" / "a" / "record.jsonl"
    facts, *lines = map(json.loads, path.read_text().splitlines())
    for i, line in enumerate(lines):
        line["training_loss"] = 1 + 8 * (i % 5 == 4)
    path.write_text("".join(json.dumps(line) + "\n" for line in (facts, *lines)))
    runs.gather(tmp_path / "runs", tmp_path / "all.json")
    run = runs.gathered(tmp_path / "all.json")["a"]
    mean = (run.curves["training_loss"] * np.diff(run.steps, prepend=0)).sum() / run.steps[-1]
    assert mean == pytest.approx(1 + 8 / 5, rel=1e-4)


def test_the_command_gathers_and_says_where_runs_end(tmp_path, capsys):
    write_run(tmp_path / "runs" / "a", [2.0, 0.25])
    assert cli.main(["gather", str(tmp_path / "runs"), str(tmp_path / "all.json")]) == 0
    assert "a: 20 of 20 steps, 5 CPU seconds, loss 0.25, rate 0.001" in capsys.readouterr().out


def test_a_run_that_was_not_evaluated_yet_is_left_out(tmp_path, capsys):
    write_run(tmp_path / "runs" / "begun", [])
    words = ["gather", str(tmp_path / "runs"), str(tmp_path / "all.json")]
    assert cli.main(words) == 2
    assert "none of the runs there has been evaluated yet" in capsys.readouterr().err
    assert not (tmp_path / "all.json").exists()
    write_run(tmp_path / "runs" / "done", [2.0])
    assert cli.main(words) == 0
    assert "begun" not in capsys.readouterr().out
    assert list(runs.gathered(tmp_path / "all.json")) == ["done"]


def test_a_folder_without_runs_is_one_line(tmp_path, capsys):
    assert cli.main(["gather", str(tmp_path), str(tmp_path / "all.json")]) == 2
    assert "no run there; `linattn-ref train` makes them" in capsys.readouterr().err
    assert not (tmp_path / "all.json").exists()


@pytest.mark.parametrize("name", ["record.jsonl", "times.jsonl"])
def test_of_a_run_killed_between_two_files_what_both_have_is_gathered(tmp_path, name):
    write_run(tmp_path / "runs" / "a", [2.0, 1.0, 0.5])
    path = tmp_path / "runs" / "a" / name
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    (run,) = runs.gather(tmp_path / "runs", tmp_path / "all.json").values()
    assert run.curves["loss"].tolist() == [2.0, 1.0]
    assert run.steps.tolist() == [10, 20]
    assert run.cpu_seconds.tolist() == [2.5, 5.0]


@pytest.mark.parametrize("left", [None, "", '{"step": 10, "cpu_seconds": null}\n{"step": 20, "cpu_seconds": null}\n'])
def test_of_a_run_without_times_the_rest_is_gathered(tmp_path, left):
    write_run(tmp_path / "runs" / "a", [2.0, 1.0])
    path = tmp_path / "runs" / "a" / "times.jsonl"
    path.unlink()
    if left is not None:
        path.write_text(left)
    runs.gather(tmp_path / "runs", tmp_path / "all.json")
    run = runs.gathered(tmp_path / "all.json")["a"]
    assert run.curves["loss"].tolist() == [2.0, 1.0]
    assert np.isnan(run.cpu_seconds).all()
    assert len(run.cpu_seconds) == 2


def test_an_empty_record_is_named(tmp_path, capsys):
    write_run(tmp_path / "runs" / "a", [2.0])
    (tmp_path / "runs" / "a" / "record.jsonl").write_text("")
    assert cli.main(["gather", str(tmp_path / "runs"), str(tmp_path / "all.json")]) == 2
    assert "record.jsonl: empty; no record of a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("record.jsonl", "{}"),
        ("record.jsonl", '{"facts": {"seed": 0}}'),
        ("record.jsonl", "[]"),
        ("times.jsonl", '{"step": 10}'),
        ("result.json", "{"),
    ],
)
def test_what_lacks_something_is_named_and_nothing_is_written(tmp_path, name, line, capsys):
    write_run(tmp_path / "runs" / "a", [2.0])
    path = tmp_path / "runs" / "a" / name
    rest = path.read_text().splitlines()[1:] if path.exists() else []
    path.write_text("\n".join([line, *rest]) + "\n")
    assert cli.main(["gather", str(tmp_path / "runs"), str(tmp_path / "all.json")]) == 2
    assert f"{tmp_path / 'runs' / 'a'}: damaged, or no record of a run" in capsys.readouterr().err
    assert not (tmp_path / "all.json").exists()


@pytest.mark.parametrize("words", [["gather", "runs"], ["gather", "runs", "--weights", "a"], ["ship", "runs/a"]])
def test_nothing_is_written_over_the_files_of_a_run(tmp_path, words, capsys, monkeypatch):
    write_run(tmp_path / "runs" / "a", [2.0])
    write_weights(tmp_path / "runs" / "a" / "last.safetensors", "one", 10, 0)
    monkeypatch.chdir(tmp_path)
    for name in ("record.jsonl", "last.safetensors", "new.json"):
        before = {path.name: path.read_bytes() for path in (tmp_path / "runs" / "a").iterdir()}
        assert cli.main([*words[:2], f"runs/a/{name}", *words[2:]]) == 2
        assert "lies in the folder of a run" in capsys.readouterr().err
        assert {path.name: path.read_bytes() for path in (tmp_path / "runs" / "a").iterdir()} == before


def test_no_gathered_file_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        runs.gathered(tmp_path / "none.json")


class Params(NamedTuple):
    w: np.ndarray


class Trees(NamedTuple):
    params: Params
    state: Params


def test_weights_are_kept_in_half_the_bits_without_the_optimisers_state(tmp_path, capsys):
    write_run(tmp_path / "runs" / "a", [2.0])
    w = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    checkpoint.save(tmp_path / "runs" / "a" / "last.safetensors", Trees(Params(w), Params(w)), {"step": 10})
    assert cli.main(["gather", str(tmp_path / "runs"), str(tmp_path / "all.json"), "--weights", "a"]) == 0
    kept = tmp_path / "all-a.safetensors"
    assert str(kept) in capsys.readouterr().out
    found = checkpoint.load(kept)
    assert {name: array.dtype for name, array in found.arrays.items()} == {"params.w": np.float16}
    read = runs.kept_weights(kept, Params(np.empty_like(w)))
    assert read.w.dtype == np.float32
    np.testing.assert_allclose(read.w, w, rtol=2**-11, atol=0)  # rounded to 11 bits
    with pytest.raises(ValueError, match="params"):
        runs.kept_weights(kept, Params(np.empty((2, 2), np.float32)))


def test_weights_of_no_run_are_an_error_and_nothing_is_written(tmp_path, capsys):
    write_run(tmp_path / "runs" / "a", [2.0])
    assert cli.main(["gather", str(tmp_path / "runs"), str(tmp_path / "all.json"), "--weights", "b"]) == 2
    assert "weights: expected some of the runs a, got 'b'" in capsys.readouterr().err
    assert cli.main(["gather", str(tmp_path / "runs"), str(tmp_path / "all.json"), "--weights", "a"]) == 2
    assert "no checkpoint at" in capsys.readouterr().err
    write_run(tmp_path / "runs" / "b", [2.0])
    write_weights(tmp_path / "runs" / "a" / "last.safetensors", "one", 10, 0)
    (tmp_path / "runs" / "b" / "last.safetensors").write_bytes(b"damaged")
    assert cli.main(["gather", str(tmp_path / "runs"), str(tmp_path / "all.json"), "--weights", "a", "b"]) == 2
    assert "is no checkpoint, or a damaged one" in capsys.readouterr().err
    write_weights(tmp_path / "runs" / "b" / "last.safetensors", "one", 10, 0)
    (tmp_path / "all-b.safetensors").mkdir()
    assert cli.main(["gather", str(tmp_path / "runs"), str(tmp_path / "all.json"), "--weights", "a", "b"]) == 2
    assert "all-b.safetensors: cannot write" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "all-b.safetensors"}


# --- Runs that go on from others ------------------------------------------------------------------------------------

NETWORK = {"attention": "linear", "shape": {"heads": 2}}


def write_weights(path, command, step, seed, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    params = Params(np.full((2, 2), step, np.float32))
    facts = {"command": command, "seed": seed, **NETWORK, **more}
    checkpoint.save(path, Trees(params, params), {"facts": facts, "step": step})


def test_a_run_knows_those_it_went_on_from(tmp_path):
    first, second = tmp_path / "a" / "last.safetensors", tmp_path / "b" / "last.safetensors"
    write_weights(first, "one", 30, 0)
    params = Params(np.zeros((2, 2), np.float32))
    said = runs.go_on(first, params, seed=1, network=NETWORK)
    assert said == {"command": "one", "seed": 0, "sha256": fetch.file_sha256(first), "steps": 30}
    np.testing.assert_array_equal(params.w, 30)
    write_weights(second, "two", 12, 1, start=said)
    for seed in (0, 1):
        with pytest.raises(ValueError, match=f"seed: batches of seed {seed} would come again"):
            runs.go_on(second, params, seed=seed, network=NETWORK)
    without = {key: value for key, value in said.items() if key != "seed"} | {"command": "one --seed 5"}  # an older one
    write_weights(tmp_path / "d" / "last.safetensors", "two", 12, 1, start=without)
    with pytest.raises(ValueError, match="seed: batches of seed 5 would come again"):
        runs.go_on(tmp_path / "d" / "last.safetensors", params, seed=5, network=NETWORK)
    said = runs.go_on(second, params, seed=2, network=NETWORK)
    assert said["steps"] == 42
    assert runs.steps_in_all({"start": said}, 8) == 50
    assert runs.commands({"command": "three", "start": said}) == ("one", "two", "three")
    assert runs.commands({"command": "one"}) == ("one",)


def test_what_lengthened_a_run_is_among_its_commands(tmp_path):
    longer = [{"from": 30, "command": "one, longer"}]
    write_weights(tmp_path / "a" / "last.safetensors", "one", 40, 0, lengthened=longer)
    params = Params(np.zeros((2, 2), np.float32))
    said = runs.go_on(tmp_path / "a" / "last.safetensors", params, seed=1, network=NETWORK)
    assert said["steps"] == 40
    assert runs.commands({"command": "two", "start": said}) == ("one", "one, longer", "two")
    assert runs.commands({"command": "two", "start": said}, lengthened=False) == ("one", "two")


@pytest.mark.parametrize(
    ("seed", "network", "told"),
    [
        (1, {**NETWORK, "attention": "softmax"}, r"start_from .*: .*has attention linear, not softmax"),
        (
            1,
            {**NETWORK, "shape": {"heads": 4}},
            r"start_from .*: .*has shape {'heads': 2}, not {'heads': 4}",
        ),
        (1, {**NETWORK, "side": 28}, r"start_from .*: .*has side None, not 28"),
        (0, NETWORK, "seed: batches of seed 0 would come again, .*has learned them; give another"),
    ],
)
def test_a_run_does_not_go_on_from_another_network_or_with_its_seed(tmp_path, seed, network, told):
    write_weights(tmp_path / "a" / "last.safetensors", "one", 30, 0)
    params = Params(np.zeros((2, 2), np.float32))
    with pytest.raises(ValueError, match=told):
        runs.go_on(tmp_path / "a" / "last.safetensors", params, seed=seed, network=network)
    assert not params.w.any()


def test_a_run_does_not_go_on_from_what_is_no_checkpoint(tmp_path):
    path, params = tmp_path / "w.safetensors", Params(np.zeros((2, 2), np.float32))
    with pytest.raises(FileNotFoundError, match=r"start_from .*: no checkpoint at"):
        runs.go_on(path, params, seed=1, network=NETWORK)
    path.write_bytes(b"none")
    with pytest.raises(ValueError, match=r"start_from .*: .*is no checkpoint, or a damaged one"):
        runs.go_on(path, params, seed=1, network=NETWORK)


@pytest.mark.parametrize(
    "facts", [[], {}, {"command": "one"}, {"command": "one", "seed": 0, "start": ["zero"]}, {"start": {}}]
)
def test_a_run_does_not_go_on_from_what_does_not_say_what_made_it(tmp_path, facts):
    path, params = tmp_path / "w.safetensors", Params(np.zeros((2, 2), np.float32))
    checkpoint.save(path, Trees(params, params), {"facts": facts, "step": 1})
    with pytest.raises(ValueError, match=r"start_from .*: .*w\.safetensors does not say what made it"):
        runs.go_on(path, params, seed=1, network={})
