"""Kernels of other packages before the judge: each passes what it offers, or fails as is known of it.

What fails is listed with its smallest case in the chapter on kernels that lied.
"""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from linattn_ref import conform
from linattn_ref.cli import conform as command
from linattn_ref.cli import main, parser
from linattn_ref.conform.target import load

JUDGED = Path(__file__).parent / "judged"
QUICK = "output", "gradients", "from_a_state", "gates", "resets"


def judge(file, function, op, dtype="float32", only=(), **mapping):
    arguments = command_line(f"{JUDGED / file}:{function}", op)
    return conform.check(
        load(arguments.target), op, dtype=dtype, mapping=command.mapping_of(arguments)._replace(**mapping), only=only
    )


def command_line(target, op):
    return parser().parse_args(["conform", target, "--op", op])


def failed(report):
    return {outcome.name: outcome.named for outcome in report.outcomes if not outcome.ok}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_pytorch(dtype):
    pytest.importorskip("torch")
    report = judge("pytorch.py", "attention", "softmax", dtype)
    report.assert_ok()
    assert report["shared_is_repeated"].verdict == report["masked_is_absent"].verdict == "passed"


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_pytorchs_fused_kernel(dtype):
    """It makes P again in its backward pass, and rounds it to 16 bits."""
    pytest.importorskip("torch")
    report = judge("pytorch.py", "fused", "softmax", dtype, widths="same")
    report.assert_ok()
    assert report["gradients"].verdict == report["large_scores"].verdict == "passed"
    assert report["fewer_queries"].verdict == "not offered"


def test_pytorch_aligns_its_causal_mask_at_the_start():
    pytest.importorskip("torch")
    report = judge("pytorch.py", "aligned_at_the_start", "softmax")
    assert failed(report) == {"fewer_queries": ("aligned_at_the_start",)}


def test_a_function_of_jax():
    pytest.importorskip("jax")
    report = judge("jax_functions.py", "rule", "gated_delta", fixed={"normalise": False})
    report.assert_ok()
    assert report["gradient_of_the_last_state"].verdict == "passed"


@pytest.mark.parametrize("op", ["gated_linear", "delta", "gated_delta"])
@pytest.mark.parametrize("file", ["onnx_runtime.py", "onnx_reference.py"])
def test_onnx(file, op):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    fixed = {} if op == "gated_linear" else {"normalise": False}
    report = judge(file, op, op, fixed=fixed)
    report.assert_ok()
    assert report["shared_is_repeated"].verdict == report["pieces"].verdict == "passed"


def test_fast_transformers():
    pytest.importorskip(
        "fast_transformers.causal_product", reason="fast-transformers is not installed (CONTRIBUTING.md)"
    )
    report = judge("fast_transformers_linear.py", "causal_linear", "linear")
    assert failed(report) == {"fewer_queries": ("aligned_at_the_start",)}
    assert {report[name].verdict for name in ("gradients", "masked_is_absent", "causal")} == {"passed"}


@pytest.mark.parametrize(
    ("function", "wrong"),
    [("torch_chunk_gated_delta_rule", {"gates", "resets"}), ("torch_recurrent_gated_delta_rule", set())],
)
def test_qwen3_next(function, wrong, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setitem(sys.modules, "fla", None)
    assert set(failed(judge("qwen3_next.py", function, "gated_delta"))) == wrong
    told = failed(judge("qwen3_next.py", function, "gated_delta", "float64", ("output", "gradients")))
    assert told == {"output": ("computes_in_float32",), "gradients": ("computes_in_float32",)}


@pytest.mark.parametrize(
    ("function", "op"),
    [
        ("chunk_gated_delta_rule", "gated_delta"),
        ("chunk_kda", "gated_delta"),
        ("chunk_gla", "gated_linear"),
        ("chunk_simple_gla", "gated_linear"),
    ],
)
def test_flash_linear_attention(function, op, tmp_path):
    """By the command, in a process that has not imported Triton yet: its interpreter is chosen when it is."""
    if not (importlib.util.find_spec("fla") and importlib.util.find_spec("triton")):
        pytest.skip("flash-linear-attention or Triton is not installed")
    target, record = f"{JUDGED / 'flash_linear_attention.py'}:{function}", tmp_path / "report.json"
    assert main(["conform", target, "--op", op, "--only", *QUICK, "--json", str(record)]) == 1
    outcomes = {x["name"]: x for x in json.loads(record.read_text(encoding="utf-8"))["outcomes"]}
    assert {name for name, x in outcomes.items() if x["verdict"] == "passed"} >= {"output", "gradients", "from_a_state"}
    assert outcomes["gates"]["verdict"] == "FAILED"
