"""The comparison of the softmax kernels: what it runs and says. No time is tested."""

import sys

import numba
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from linattn_ref.experiments.benches import bench_softmax
from linattn_ref.experiments.benches.engine import Results
from linattn_ref.experiments.publishing import record, style

pytestmark = pytest.mark.slow  # kernels are compiled for float32 for the slow tests

TIMES = dict.fromkeys(("median_ms", "min_ms", "ratio_median", "ratio_min"), 1.0)
SMALL = {"lengths": (5, 16), "heads": 2, "width": 4, "repeats": 3}


def blas_threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


@pytest.fixture
def without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_setting_has_a_row(dtype):
    results = bench_softmax.compute(**SMALL, dtype=dtype)
    settings = {(row.length, row.causal, row.passes, row.kernel) for row in results.rows}
    kernels = ("jit", "reference")
    assert settings == {
        (n, causal, passes, kernel)
        for n in SMALL["lengths"]
        for causal in (False, True)
        for passes in bench_softmax.PASSES
        for kernel in kernels
    }
    assert len(results.rows) == len(settings)
    assert results.dtype == dtype
    for row in results.rows:
        assert 0 <= row.min_ms <= row.median_ms
        assert row.ratio_min <= row.ratio_median
        if row.kernel == "jit":
            assert row.ratio_min == row.ratio_median == 1


@pytest.mark.usefixtures("without_torch")
def test_without_pytorch_it_says_so():
    results = bench_softmax.compute(**SMALL)
    assert results.pytorch is None
    text = bench_softmax.table(results)
    assert "Not installed, so not compared: PyTorch." in text
    header, rule, *lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == len(results.rows) / 2  # a line a setting, two kernels in it
    assert {line.count("|") for line in (header, rule, *lines)} == {6}
    assert "pytorch" not in header


def test_beside_pytorch():
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    results = bench_softmax.compute(**SMALL)
    assert torch.get_num_threads() == threads
    assert results.pytorch == torch.__version__
    assert {row.kernel for row in results.rows} == {"jit", "reference", "pytorch"}
    assert f"PyTorch {torch.__version__}" in bench_softmax.table(results)


@pytest.mark.usefixtures("without_torch")
def test_one_thread_while_it_runs_and_as_before_afterwards(monkeypatch):
    seen = []
    run = bench_softmax._run

    def spy(*arguments):
        seen.append((numba.get_num_threads(), *blas_threads()))
        return run(*arguments)

    monkeypatch.setattr(bench_softmax, "_run", spy)
    with threadpool_limits(2, user_api="blas"):  # conftest.py lets the tests have one
        before = numba.get_num_threads(), blas_threads()
        bench_softmax.compute(**SMALL)
        assert (numba.get_num_threads(), blas_threads()) == before
    assert seen
    assert {count for counts in seen for count in counts} == {1}


@pytest.mark.usefixtures("without_torch")
def test_a_wrong_result_is_not_timed(monkeypatch):
    run = bench_softmax._run

    def wrong(name, *arguments):
        out, *gradients = run(name, *arguments)
        return (out if name == "jit" else out * 1.01, *gradients)

    monkeypatch.setattr(bench_softmax, "_run", wrong)
    with pytest.raises(RuntimeError, match="reference and jit differ in out"):
        bench_softmax.compute(**SMALL)


def test_gigaflops():
    """N = 3: 9 pairs, causal 6; 2 products of 2 D = 8 operations a pair and head forward, 7 with the backward pass."""
    row = Results(length=3, causal=False, passes="forward", median_ms=1e-3)
    assert bench_softmax.gigaflops(row, 5, 4) == pytest.approx(9 * 2 * 8 * 5 / 1e-6 / 1e9)
    row = Results(length=3, causal=True, passes="forward + backward", median_ms=1e-3)
    assert bench_softmax.gigaflops(row, 5, 4) == pytest.approx(6 * 7 * 8 * 5 / 1e-6 / 1e9)


def test_the_figure_shows_every_kernel(tmp_path):
    rows = tuple(
        Results(length=n, causal=causal, passes=passes, kernel=kernel, **TIMES)
        for n in (4, 8)
        for causal in (False, True)
        for passes in bench_softmax.PASSES
        for kernel in ("jit", "reference", "pytorch")
    )
    results = Results(heads=2, width=4, dtype="float32", repeats=3, pytorch="2.0", rows=rows)
    with style.use("paper"):
        figure = bench_softmax.draw(results)
        files = record.save(figure, results, tmp_path, "bench", command="linattn-ref bench softmax", seed=0)
    for axis in figure.axes:
        drawn = [line for line in axis.get_lines() if len(line.get_xdata())]
        assert len(drawn) == 6
    assert all(file.stat().st_size for file in files)


def test_another_dtype_is_refused():
    with pytest.raises(ValueError, match="dtype: expected float32 or float64, got int32"):
        bench_softmax.compute(**SMALL, dtype="int32")
