"""The comparison of sparse patterns: what it runs and says. No time is tested."""

import numpy as np
import pytest

from linattn_ref.experiments.benches import bench_patterns, bench_patterns_peers
from linattn_ref.experiments.benches.engine import Results
from linattn_ref.experiments.publishing import record, style

pytestmark = pytest.mark.slow  # kernels are compiled for float32 for the slow tests

SMALL = {"lengths": (32, 35), "heads": 2, "width": 4, "window": 4, "block": 4, "drawn": 1, "repeats": 3}


@pytest.fixture
def alone(monkeypatch):
    """Nothing else is installed."""
    monkeypatch.setattr(bench_patterns_peers.engine, "find", lambda name: None)


def kernels_of(results, mechanism, length):
    return {row.kernel for row in results.rows if (row.mechanism, row.length) == (mechanism, length)}


@pytest.mark.usefixtures("alone")
def test_every_setting_has_a_row_and_a_line():
    results = bench_patterns.compute(**SMALL)
    settings = [(row.mechanism, row.length, row.passes, row.kernel) for row in results.rows]
    assert sorted(settings) == sorted(
        (mechanism, length, passes, kernel)
        for mechanism in bench_patterns.PAGES
        for length in SMALL["lengths"]
        for passes in bench_patterns.PASSES
        for kernel in ("jit", "reference")
    )
    for row in results.rows:
        assert 0 <= row.min_ms <= row.median_ms
        assert row.ratio_min <= row.ratio_median
    text = bench_patterns.table(results)
    header, rule, *lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == len(results.rows) / 2
    assert {line.count("|") for line in (header, rule, *lines)} == {7}
    assert "Not installed, so not compared: PyTorch, transformers, fast-transformers" in text


def test_beside_pytorch_and_huggingface():
    """Whatever is installed agrees, and takes part where the length suits it."""
    pytest.importorskip("torch", reason="PyTorch is not installed (extra peers)")
    peers = bench_patterns_peers.find()
    results = bench_patterns.compute(**SMALL)
    assert bench_patterns_peers.ALL_PAIRS in kernels_of(results, "local", 35)
    if peers.longformer is not None and peers.bigbird is not None:
        for mechanism in ("longformer", "bigbird"):
            assert "transformers" in kernels_of(results, mechanism, 32)
            assert "transformers" not in kernels_of(results, mechanism, 35)
    if peers.local is not None:
        assert "fast-transformers" in kernels_of(results, "local", 35)
    assert all(f"{name} {version}" in bench_patterns.table(results) for name, version in results.versions.items())


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("mechanism", bench_patterns.PAGES)
def test_a_wrong_result_is_not_timed(mechanism, monkeypatch):
    run = bench_patterns._ours

    def wrong(room, name, *arguments):
        out, *gradients = run(room, name, *arguments)
        if room is bench_patterns.reference and gradients and name == mechanism:
            gradients[1] = gradients[1] + np.float32(0.01)
        return out, *gradients

    monkeypatch.setattr(bench_patterns, "_ours", wrong)
    with pytest.raises(RuntimeError, match=f"^{mechanism}, .*: reference and jit differ in d_k"):
        bench_patterns.compute(**SMALL)


@pytest.mark.usefixtures("alone")
def test_the_figure_shows_every_kernel(tmp_path):
    results = bench_patterns.compute(**SMALL)
    others = [Results(**{**row, "kernel": "transformers"}) for row in results.rows if row.kernel == "jit"]
    results = Results(**{**vars(results), "rows": (*results.rows, *others)})
    with style.use("paper"):
        figure = bench_patterns.draw(results)
        files = record.save(figure, results, tmp_path, "bench", command="linattn-ref bench patterns", seed=0)
    for axis in figure.axes:
        assert len([line for line in axis.get_lines() if len(line.get_xdata()) == 2]) == 3
    assert all(file.stat().st_size for file in files)
