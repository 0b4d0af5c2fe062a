import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from linattn_ref.experiments.measuring import measurements
from linattn_ref.experiments.rank.spectrum_inputs import of_noise, values_of
from linattn_ref.theory.spectrum import singular_values

SETTINGS = {"seed": 0, "shape": (2, 12, 12)}


def run(tasks, folder, settings, method="svd", **how):
    calls = {name: (values_of, method, *task) for name, task in tasks.items()}
    return measurements.measure_all(calls, settings, parts=folder, **how)


def noise(count=4):
    return {f"noise-{i}": (of_noise, 2, 12, 12, 8, seed) for i, seed in enumerate(_seeds(count))}


def _seeds(count):
    return np.random.SeedSequence(0).spawn(count)


def interrupt(*_):
    raise KeyboardInterrupt


def same(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def test_results_are_the_singular_values_and_each_is_a_file(tmp_path):
    results = run(noise(), tmp_path, SETTINGS)
    for name, (_, *arguments) in noise().items():
        p = next(of_noise(*arguments))
        assert np.array_equal(results[name], singular_values(p)[None])
        assert np.array_equal(results[name], np.load(tmp_path / f"{name}.npy"))
    assert {path.name for path in tmp_path.iterdir()} == {
        ".lock",
        "settings.json",
        *(f"noise-{i}.npy" for i in range(4)),
    }


def test_an_interrupted_run_resumed_gives_the_same_bits_and_repeats_nothing(tmp_path, monkeypatch):
    whole = run(noise(), tmp_path / "whole", SETTINGS)
    tasks = noise()
    with pytest.raises(KeyboardInterrupt):
        run(tasks | {"noise-2": (interrupt,)}, tmp_path / "cut", SETTINGS)
    assert {path.stem for path in (tmp_path / "cut").glob("*.npy")} == {"noise-0", "noise-1"}
    done = []
    monkeypatch.setattr(measurements, "store", lambda folder, name, values: done.append(name))
    assert same(run(tasks, tmp_path / "cut", SETTINGS, resume=True), whole)
    assert done == ["noise-2", "noise-3"]


def test_two_processes_give_the_same_bits_as_one(tmp_path):
    assert same(run(noise(), tmp_path / "1", SETTINGS), run(noise(), tmp_path / "2", SETTINGS, workers=2))


def test_resume_refuses_other_settings_and_leaves_the_results(tmp_path):
    run(noise(), tmp_path, SETTINGS)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=r"resume: the results in .* were made with other settings: seed was 0, is 1$"):
        run(noise(), tmp_path, {**SETTINGS, "seed": 1}, resume=True)
    with pytest.raises(ValueError, match=r"settings: shape was \[2, 12, 12\], is None; more was None, is 3$"):
        run(noise(), tmp_path, {"seed": 0, "more": 3}, resume=True)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_resume_clears_away_what_was_half_written(tmp_path):
    run(noise(), tmp_path, SETTINGS)
    (tmp_path / ".noise-1.npy.1.part").touch()
    run(noise(), tmp_path, SETTINGS, resume=True)
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_resume_says_that_settings_are_damaged(tmp_path, content):
    (tmp_path / "settings.json").write_text(content)
    with pytest.raises(ValueError, match=r"^resume: .*settings\.json is damaged; without that file"):
        run(noise(), tmp_path, SETTINGS, resume=True)


def test_resume_where_there_is_nothing_begins(tmp_path):
    assert len(run(noise(), tmp_path / "new", SETTINGS, resume=True)) == 4


def test_without_resume_a_run_begins_anew(tmp_path):
    run(noise(), tmp_path, SETTINGS)
    (tmp_path / ".noise-9.npy.1.part").touch()
    (tmp_path / "notes.txt").touch()
    run(noise(2), tmp_path, {"seed": 5})
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {".lock", "settings.json", "noise-0.npy", "noise-1.npy", "notes.txt"}
    assert [*json.loads((tmp_path / "settings.json").read_text())] == ["seed", "versions", "machine"]


@pytest.mark.parametrize("keep", [0, 60, 200])
def test_a_damaged_result_is_computed_again(tmp_path, keep):
    whole = run(noise(), tmp_path, SETTINGS)
    damaged = tmp_path / "noise-1.npy"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:keep])
    assert same(run(noise(), tmp_path, SETTINGS, resume=True), whole)
    assert damaged.read_bytes() == content


def test_full_disk_ends_the_run_names_the_file_and_keeps_what_is_whole(tmp_path, monkeypatch):
    write_bytes = Path.write_bytes

    def write(path, content):
        write_bytes(path, content[: len(content) // 2])
        if "noise-2" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_bytes(path, content)

    monkeypatch.setattr(Path, "write_bytes", write)
    with pytest.raises(OSError, match=r"cannot write: No space left on device: .*noise-2\.npy"):
        run(noise(), tmp_path, SETTINGS)
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "settings.json", "noise-0.npy", "noise-1.npy"}


def test_an_error_in_a_task_is_told_as_it_is(tmp_path):
    bad = {"bad": (of_noise, 2, 12, 12, 0, np.random.SeedSequence(0))}
    with pytest.raises(ValueError, match=r"^q: every axis needs at least one entry"):
        run(bad, tmp_path, SETTINGS)


def test_unknown_method(tmp_path):
    with pytest.raises(ValueError, match="method: expected one of svd, gram"):
        run(noise(1), tmp_path, SETTINGS, method="qr")


@pytest.mark.slow
def test_a_worker_that_dies_is_an_error(tmp_path):
    tasks = {f"dies-{i}": (os._exit, 1) for i in range(2)}
    with pytest.raises(ChildProcessError, match="a worker process died"):
        run(tasks, tmp_path, SETTINGS, workers=2)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks for processes in /proc")
def test_workers_end_with_a_parent_that_was_killed(tmp_path):
    code = (
        "import pathlib, sys, time\n"
        "from linattn_ref.experiments.measuring.measurements import measure_all\n"
        "from linattn_ref.experiments.rank.spectrum_inputs import of_noise, values_of\n"
        "import numpy as np\n"
        "noise = [(of_noise, 8, 400, 400, 8, np.random.SeedSequence(i)) for i in range(500)]\n"
        "calls = {str(i): (values_of, 'svd', *task) for i, task in enumerate(noise)}\n"
        "measure_all(calls, {}, parts=pathlib.Path(sys.argv[1]), workers=2)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stderr=subprocess.DEVNULL)
    while not list(tmp_path.glob("*.npy")):
        assert process.poll() is None
        time.sleep(0.1)
    workers = _children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(workers) >= 2
    deadline = time.monotonic() + 60
    while any(os.path.exists(f"/proc/{pid}") for pid in workers):
        assert time.monotonic() < deadline, "the workers are still there"
        time.sleep(0.2)


def _children(parent):
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == parent:
                found.append(int(entry))
    return found
