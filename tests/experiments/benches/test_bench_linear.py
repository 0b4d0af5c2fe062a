"""The comparison of the causal products: what it runs and says. No time is tested."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from linattn_ref.experiments.benches import bench_linear, engine, peers
from linattn_ref.experiments.benches.engine import Results
from linattn_ref.experiments.benches.limits import SUMS, sum_of_adds
from linattn_ref.kernels import reference
from linattn_ref.kernels.jit.loops.simd.vector import lanes

pytestmark = pytest.mark.slow  # kernels are compiled for float32 for the slow tests

SMALL = {
    "lengths": (5, 70),
    "batches": (1, 2),
    "heads": 2,
    "width": 4,
    "step_width": 3,
    "repeats": 2,
    "compile": False,
}
PASSES = (bench_linear.FORWARD, bench_linear.BOTH, bench_linear.ATTENTION)
STEPS = (bench_linear.STEP_KERNEL, bench_linear.STEP)


@pytest.fixture
def without_torch(monkeypatch):
    for package in ("torch", "onnxruntime"):
        monkeypatch.setitem(sys.modules, package, None)


def kernels_of(results, task):
    return {row.kernel for row in results.rows if row.task == task}


@pytest.mark.usefixtures("without_torch")
def test_every_task_and_size_has_a_row_for_every_kernel():
    results = bench_linear.compute(**SMALL)
    expected = {(task, n) for task in PASSES for n in SMALL["lengths"]} | {(task, b) for task in STEPS for b in (1, 2)}
    assert {(row.task, row.size) for row in results.rows} == expected
    assert len({(row.task, row.size, row.kernel) for row in results.rows}) == len(results.rows)
    for task in PASSES[:2]:
        assert kernels_of(results, task) == {
            "jit",
            "jit float64",
            "jit plain",
            "reference",
            "multiply-adds alone",
        }
    assert kernels_of(results, bench_linear.ATTENTION) == {"jit", "reference"}
    assert kernels_of(results, bench_linear.STEP_KERNEL) == {"jit"}
    assert kernels_of(results, bench_linear.STEP) == {"jit", "jit, new state", "reference"}
    for row in results.rows:
        assert 0 <= row.min_ms <= row.median_ms
        assert row.ratio_min <= row.ratio_median
        if row.kernel == "jit":
            assert row.ratio_min == row.ratio_median == 1


def test_beside_pytorch():
    torch = pytest.importorskip("torch")
    results = bench_linear.compute(**SMALL)
    assert results.versions["PyTorch"] == torch.__version__
    forms = {"pytorch, loop of 32", "pytorch, loop of 64", "pytorch, 64 at once"}
    for task in PASSES[:2]:
        assert forms <= kernels_of(results, task)
    for task in STEPS:
        assert {"pytorch, new state", "pytorch, in place"} <= kernels_of(results, task)
        assert "pytorch, in place |" in bench_linear.table(results)
    assert f"PyTorch {torch.__version__}" in bench_linear.table(results)


def fake_fast_transformers(torch):
    """What of fast-transformers is used, with its arguments and order of axes, made of PyTorch's own operations."""

    def forward(q, k, v, out):
        out.copy_(torch.tril(q @ k.mT) @ v)

    def backward(q, k, v, d_out, d_q, d_k, d_v):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        (torch.tril(leaves[0] @ leaves[1].mT) @ leaves[2]).backward(d_out)
        for gradient, leaf in zip((d_q, d_k, d_v), leaves, strict=True):
            gradient.copy_(leaf.grad)

    def attention(queries, keys, values, triangle, query_lengths, key_lengths):
        q, k, v = (x.transpose(1, 2) for x in (queries, keys, values))  # (B, H, N, ...)
        elu = torch.nn.functional.elu
        similarity = torch.tril((elu(q) + 1) @ (elu(k) + 1).mT)
        return ((similarity / (similarity.sum(-1, keepdim=True) + 1e-6)) @ v).transpose(1, 2)

    class Step(torch.nn.Module):
        def forward(self, q, k, v, state):
            s, z = state
            elu = torch.nn.functional.elu
            phi_q, phi_k = elu(q) + 1, elu(k) + 1  # (B, H, C)
            s, z = s + phi_k[..., :, None] * v[..., None, :], z + phi_k
            return (phi_q[..., None, :] @ s)[..., 0, :] / ((phi_q * z).sum(-1, keepdim=True) + 1e-6), [s, z]

    step = Step()
    return SimpleNamespace(
        __version__="0",
        causal_product=SimpleNamespace(causal_dot_product_cpu=forward, causal_dot_backward_cpu=backward),
        attention=SimpleNamespace(CausalLinearAttention=lambda width: attention),
        recurrent=SimpleNamespace(attention=SimpleNamespace(RecurrentLinearAttention=lambda width, eps: step)),
        masking=SimpleNamespace(TriangularCausalMask=lambda n: n, LengthMask=lambda lengths: lengths),
    )


def test_beside_fast_transformers_and_its_other_build(monkeypatch):
    torch = pytest.importorskip("torch")
    package = fake_fast_transformers(torch)
    parts = {name: getattr(package, name) for name in ("causal_product", "attention", "masking", "recurrent")}
    for name in peers.FAST_TRANSFORMERS.values():
        monkeypatch.setitem(sys.modules, name, package)
        monkeypatch.setitem(sys.modules, f"{name}.recurrent.attention", package.recurrent.attention)
        for part in parts:
            monkeypatch.setitem(sys.modules, f"{name}.{part}", getattr(package, part))
    results = bench_linear.compute(**SMALL)
    for task in PASSES:
        assert set(peers.FAST_TRANSFORMERS) <= kernels_of(results, task)
    text = bench_linear.table(results)
    assert "fast-transformers 0, fast-transformers native 0" in text
    assert "compared: PyTorch" not in text
    assert "fast-transformers" in kernels_of(results, bench_linear.STEP)


def test_the_limit_is_a_number():
    """Each sum ends at 1, where x / 2 + 1 / 2 = x; that there is nothing else in it is for the clock."""
    for dtype in (np.float32, np.float64):
        like = np.array([0.5], dtype)
        assert sum_of_adds(10**6, like) == SUMS * lanes(like)


NAIVE = """
import torch


def naive_chunk_linear_attn(q, k, v, scale, normalize=False):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    similarity = torch.tril(scale * q @ k.mT)
    if normalize:
        similarity = similarity / similarity.sum(-1, keepdim=True)
    return (similarity @ v).transpose(1, 2)
"""


def test_beside_flash_linear_attention(monkeypatch, tmp_path):
    """Only of lengths that its chunks divide; the package itself, which would not load, is never imported."""
    pytest.importorskip("torch")
    folder = tmp_path / "fla" / "ops" / "linear_attn"
    folder.mkdir(parents=True)
    (folder / "naive.py").write_text(NAIVE)
    (tmp_path / "fla" / "__init__.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(peers.importlib.metadata, "version", lambda name: {"fla-core": "0"}[name])
    results = bench_linear.compute(**{**SMALL, "lengths": (64, 70)})
    beside = {(row.task, row.size) for row in results.rows if row.kernel == peers.FLA}
    assert beside == {(task, 64) for task in PASSES}
    assert "flash-linear-attention, naive 0" in bench_linear.table(results)


@pytest.mark.usefixtures("without_torch")
def test_a_wrong_result_is_not_timed(monkeypatch):
    def wrong(*arrays):
        return tuple(x * 1.01 if i == 1 else x for i, x in enumerate(right(*arrays)))

    right = bench_linear.plain.backward_by_row
    monkeypatch.setattr(bench_linear.plain, "backward_by_row", wrong)
    with pytest.raises(RuntimeError, match=r"forward \+ backward, size=5: jit plain and jit differ in d_k by 1\.0e-02"):
        bench_linear.compute(**SMALL)


def test_a_step_of_other_queries_is_not_timed(monkeypatch):
    """From a state of 0, with one token again and again, out is v whatever the queries are."""
    right = bench_linear.linear.step

    def wrong(q, *rest, kernels, **options):
        return right(2 * q if kernels is reference else q, *rest, kernels=kernels, **options)

    monkeypatch.setattr(bench_linear.linear, "step", wrong)
    calls = dict(bench_linear.steps(1, 2, 3, None, {}, np.random.default_rng(0)))[bench_linear.STEP]
    with pytest.raises(RuntimeError, match="step: reference and jit differ in out"):
        engine.measure({"task": "step"}, calls, 1, tolerance=bench_linear.TOLERANCE, often=2)


def test_of_pytorchs_forms_the_fastest_stands_in_the_table():
    rows = [
        Results(task=task, size=8, kernel=kernel, median_ms=ms)
        for task, times in (("a", (1, 3, 2)), ("b", (1, 4, 5)))
        for kernel, ms in zip(("jit", "pytorch, x", "pytorch, y"), times, strict=True)
    ]
    found = {(row.task, row.kernel): row.median_ms for row in bench_linear.best_torch(rows)}
    assert found == {("a", "jit"): 1, ("b", "jit"): 1, ("a", "pytorch"): 2, ("b", "pytorch"): 4}
