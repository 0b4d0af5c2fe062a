"""The comparison of the delta rule: what it runs and says. No time is tested."""

import importlib.util

import numpy as np
import pytest

from linattn_ref.experiments.benches import bench_delta, runtimes

pytestmark = pytest.mark.slow  # its kernels are compiled for the slow tests
SMALL = {"lengths": (64,), "heads": 2, "width": 4, "repeats": 2}


def test_every_task_is_timed_beside_its_yardsticks():
    results = bench_delta.compute(**SMALL)
    assert {(row.task, row.passes, row.size) for row in results.rows} == {
        (t, p, 64) for t in bench_delta.TASKS for p in bench_delta.PASSES
    }
    expected = {"jit", "reference", bench_delta.PRODUCT, bench_delta.LIMIT}
    has_peer = importlib.util.find_spec("fla") is not None and importlib.util.find_spec("torch") is not None
    has_runtime = bool(runtimes.find_runtimes().get(runtimes.ONNX))
    peers = {name for name, there in ((bench_delta.PEER, has_peer), (runtimes.ONNX, has_runtime)) if there}
    assert {row.kernel for row in results.rows} == expected | peers
    assert ("Not compared here" in bench_delta.table(results)) == (not (has_peer and has_runtime))


def test_a_wrong_result_is_not_timed(monkeypatch):
    right = bench_delta.chunked_delta.forward
    monkeypatch.setattr(bench_delta.chunked_delta, "forward", lambda *rows: (1.01 * right(*rows)[0], *right(*rows)[1:]))
    with pytest.raises(RuntimeError, match=r"delta, forward, size=64: reference and jit differ in out by 1\.0e-02"):
        bench_delta.compute(**SMALL)


def test_multiply_adds_are_counted():
    inputs = bench_delta.draw_inputs(np.random.default_rng(0), 2, 5, 4, bench_delta.GATED)
    pairs = bench_delta.CHUNK * 8
    assert bench_delta.multiply_adds_of(inputs, bench_delta.FORWARD) == 10 * (3 * 16 + pairs)
    assert bench_delta.multiply_adds_of(inputs, bench_delta.BOTH) == 10 * (10 * 16 + 4 * pairs)
