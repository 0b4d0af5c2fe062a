"""Cases as files: the same bytes each time, small, and an answer in C that is judged."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from safetensors.numpy import load_file, save_file

from linattn_ref.conform import CHECKS, NotATarget, files
from linattn_ref.conform.questions import OPS, rounded


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    files.write(folder, ("gated_linear",))
    return folder


@pytest.fixture
def folder(written, tmp_path):
    return Path(shutil.copytree(written, tmp_path / "cases"))


SOME = "gradients", "masked_is_absent", "gradient_of_the_last_state"  # draws inputs, states, cotangents and masks


@pytest.mark.parametrize("names", [SOME, pytest.param(tuple(CHECKS), marks=pytest.mark.slow)], ids=["some", "all"])
def test_the_same_bytes_each_time(names, written, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "CHECKS", {name: each for name, each in CHECKS.items() if name in names})
    files.write(tmp_path, ("gated_linear",))
    again = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    before = {path.name: path.read_bytes() for path in written.iterdir()}
    if names == SOME:
        about, both = (json.loads(x.pop("manifest.json")) for x in (again, before))
        assert about == {**both, "cases": [x for x in both["cases"] if x["name"].split(".")[1] in names]}
        assert len({name.split(".")[1] for name in again}) == len(names)
        before = {name: before[name] for name in again}
    assert again == before
    assert sum(path.stat().st_size for path in written.iterdir()) < 20e6 / 5  # all five operations in 20 MB


@pytest.mark.slow
def test_the_full_size_is_small(tmp_path):
    assert sum(path.stat().st_size for path in files.write(tmp_path, full=True)) < 20e6


def cases_in(folder):
    """Each case of the manifest, and what is stored for it."""
    for case in json.loads((folder / "manifest.json").read_text())["cases"]:
        yield case, load_file(folder / f"{case['name']}.safetensors")


def answered(folder, dtype):
    """The page's own answers beside the cases."""
    for case, x in cases_in(folder):
        op, working = OPS[case["op"]], "float64" if dtype == "float64" else "float32"
        if "offsets" in x or "groups" in case["options"]:
            continue
        given = {name: x[name].astype(working) for name in op.inputs}
        states = ({}, {})
        for found, name in zip(states, ("state", "d_state"), strict=True):
            if f"{name}.s" in x:
                found[name] = op.page.State(*(x[f"{name}.{part}"].astype(working) for part in op.state))
        out, saved = op.page.forward(**given, **states[0], **case["options"], key_mask=x.get("key_mask"))
        grads = op.page.backward(x["d_out"].astype(working), saved, **states[1])
        answer = {"out": out, **{f"d_{name}": getattr(grads, name) for name in given}}
        answer |= {name: getattr(saved.state, name) for name in op.state if saved.state is not None}
        answer |= {f"d_{name}": getattr(grads.state, name) for name in op.state if "state" in states[0]}
        save_file(
            {name: np.ascontiguousarray(answer[name], dtype) for name in case["expected"]},
            folder / f"{case['name']}.answer.safetensors",
        )


@pytest.mark.parametrize(("op", "check"), [("softmax", "large_scores"), ("delta", "short_rows")])
def test_what_is_expected_is_the_answer_to_what_is_stored(op, check, tmp_path, monkeypatch):
    """And no more is expected than the check compares, some of which could not be judged."""
    monkeypatch.setattr(files, "CHECKS", {name: CHECKS[name] for name in ("sees_nothing", check)})
    files.write(tmp_path, (op,))
    answered(tmp_path, "float64")
    files.read(tmp_path).assert_ok()
    for case, x in cases_in(tmp_path):
        for name, right in load_file(tmp_path / f"{case['name']}.answer.safetensors").items():
            np.testing.assert_allclose(x[f"expected.{name}"], right, rtol=1e-12, atol=1e-14)
        can_be_held(x)


def test_all_four_dtypes_can_hold_the_inputs(written):
    for _, x in cases_in(written):
        can_be_held(x)


def can_be_held(stored):
    inputs = {name: x for name, x in stored.items() if not name.startswith(("expected", "budget")) and x.dtype == float}
    assert {"q", "k", "v", "d_out"} <= inputs.keys()
    for name, x in inputs.items():
        for dtype in files.DTYPES:
            np.testing.assert_array_equal(rounded(x, dtype), x, err_msg=f"{name} in {dtype}")


@pytest.mark.parametrize("dtype", files.DTYPES)
def test_right_answers_pass(folder, dtype):
    answered(folder, pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype)
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


def test_bfloat16_is_read_in_a_process_that_has_not_met_it(folder):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    name = "gated_linear.output.0"
    out = load_file(folder / f"{name}.safetensors")["expected.out"].astype(ml_dtypes.bfloat16)
    save_file({"out": out}, folder / f"{name}.answer.safetensors")
    code = (
        "import pathlib, sys; from linattn_ref.conform import files; files.read(pathlib.Path(sys.argv[1])).assert_ok()"
    )
    subprocess.run([sys.executable, "-c", code, folder], check=True)


def test_bfloat16_without_ml_dtypes(folder, monkeypatch):
    def refuses(path):
        raise TypeError("data type 'bfloat16' not understood")

    (folder / "gated_linear.output.0.answer.safetensors").write_bytes(b"")
    monkeypatch.setattr("safetensors.numpy.load_file", refuses)
    with pytest.raises(NotATarget, match=r"linattn-ref\[half\]"):
        files.read(folder)


def test_an_answer_of_another_name(folder):
    name = "gated_linear.output.0"
    save_file({"output": np.zeros((1, 1), np.float32)}, folder / f"{name}.answer.safetensors")
    outcome = files.read(folder)[name]
    assert outcome.verdict == "FAILED"
    assert outcome.where.endswith("got output")


def test_each_head_of_each_sequence_has_a_mask_of_its_own(written):
    mask = load_file(written / "gated_linear.masked_is_absent.0.safetensors")["key_mask"]
    assert mask.ndim == 3
    assert len(np.unique(mask.reshape(-1, mask.shape[-1]), axis=0)) == mask.shape[0] * mask.shape[1]


@pytest.mark.parametrize(
    ("damaged", "content"),
    [
        ("manifest.json", b"{"),
        ("manifest.json", b"\xff"),
        ("manifest.json", b'{"version": 2}'),
        ("manifest.json", b'{"version": 2, "cases": 3}'),
        ("manifest.json", b'{"version": 2, "cases": [{"name": "output"}]}'),
        ("gated_linear.output.0.safetensors", b"half of i"),
        ("gated_linear.output.0.safetensors", safetensors.numpy.save({"q": np.ones(1)})),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_damaged_file_is_named(written, tmp_path, damaged, content):
    for name in ("manifest.json", "gated_linear.output.0.safetensors"):
        shutil.copy(written / name, tmp_path)
    save_file({"out": np.zeros((2, 2, 20, 6))}, tmp_path / "gated_linear.output.0.answer.safetensors")
    assert files.read(tmp_path)["gated_linear.output.0"].verdict == "FAILED"
    (tmp_path / damaged).write_bytes(content)
    with pytest.raises(NotATarget, match=rf"^read: .*{damaged}: damaged, write the cases again \("):
        files.read(tmp_path)


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
    (folder / "manifest.json").write_text("[]")
    with pytest.raises(NotATarget, match="expected cases of version 2, got None"):
        files.read(folder)


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
