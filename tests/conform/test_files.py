"""Cases as files: the same bytes each time, small, and an answer in C that is judged."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from linattn_ref.attention import gated_linear
from linattn_ref.conform import NotATarget, files


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    files.write(folder, ("gated_linear",))
    return folder


@pytest.fixture
def folder(written, tmp_path):
    return Path(shutil.copytree(written, tmp_path / "cases"))


def test_the_same_bytes_each_time(written, tmp_path):
    files.write(tmp_path, ("gated_linear",))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        path.name: path.read_bytes() for path in written.iterdir()
    }
    assert sum(path.stat().st_size for path in written.iterdir()) < 20e6 / 5  # all five operations in 20 MB


@pytest.mark.slow
def test_the_full_size_is_small(tmp_path):
    assert sum(path.stat().st_size for path in files.write(tmp_path, full=True)) < 20e6


def answered(folder, dtype):
    """The page's own answers beside the cases."""
    for case in json.loads((folder / "manifest.json").read_text())["cases"]:
        x = load_file(folder / f"{case['name']}.safetensors")
        if "offsets" in x or "groups" in case["options"]:
            continue
        given = {name: x[name].astype(dtype) for name in ("q", "k", "v", "log_gate")}
        state = {"state": gated_linear.State(x["state.s"].astype(dtype))} if "state.s" in x else {}
        out, saved = gated_linear.forward(**given, **state, **case["options"], key_mask=x.get("key_mask"))
        d_state = {"d_state": gated_linear.State(x["d_state.s"].astype(dtype))} if "d_state.s" in x else {}
        grads = gated_linear.backward(x["d_out"].astype(dtype), saved, **d_state)
        answer = {"out": out, "s": saved.state.s, **{f"d_{name}": getattr(grads, name) for name in given}}
        answer |= {} if grads.state is None else {"d_s": grads.state.s}
        save_file(
            {name: np.ascontiguousarray(a) for name, a in answer.items()}, folder / f"{case['name']}.answer.safetensors"
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_right_answers_pass(folder, dtype):
    answered(folder, dtype)
    report = files.read(folder)
    report.assert_ok()
    assert report.dtype == dtype
    assert sum(x.verdict == "passed" for x in report.outcomes) > 15


def test_a_wrong_answer_fails_where_it_is_wrong(folder):
    answered(folder, "float32")
    path = folder / "gated_linear.gradients.0.answer.safetensors"
    answer = load_file(path)
    answer["d_k"][0, 1, 4, 2] += 1e-3
    save_file(answer, path)
    report = files.read(folder)
    assert [x.name for x in report.outcomes if not x.ok] == ["gated_linear.gradients.0"]
    assert report["gated_linear.gradients.0"].where.startswith("d_k[0, 1, 4, 2]")


def test_answers_that_are_none(folder, tmp_path):
    name = "gated_linear.output.0"
    (folder / f"{name}.answer.safetensors").write_bytes(b"none")
    assert files.read(folder)[name].verdict == "FAILED"
    save_file({"out": np.zeros((1, 1), np.float32)}, folder / f"{name}.answer.safetensors")
    assert "expected float64, float32, float16, bfloat16 and shape" in files.read(folder)[name].where
    for path in folder.glob("*.answer.safetensors"):
        path.unlink()
    with pytest.raises(NotATarget, match="no answers"):
        files.read(folder)
    with pytest.raises(NotATarget, match=r"no manifest\.json"):
        files.read(tmp_path / "elsewhere")


def test_a_program_in_c(folder, tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    program = tmp_path / "gated_linear"
    subprocess.run([compiler, "-O2", Path(__file__).with_name("gated_linear.c"), "-lm", "-o", program], check=True)
    cases = json.loads((folder / "manifest.json").read_text())["cases"]
    status = {x["name"]: subprocess.run([program, folder / x["name"]]).returncode for x in cases}
    assert set(status.values()) == {0, 3}
    report = files.read(folder)
    report.assert_ok()
    assert {x.name for x in report.outcomes if x.verdict == "passed"} == {
        name for name, code in status.items() if code == 0
    }
