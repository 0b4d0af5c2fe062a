"""The comparison of the softmax kernels: what it runs and says. No time is tested."""

import sys

import numba
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from linattn_ref.experiments.benches import bench_softmax, engine
from linattn_ref.experiments.benches.engine import Results

pytestmark = pytest.mark.slow  # kernels are compiled for float32 for the slow tests

SMALL = {"lengths": (5, 16), "heads": 2, "width": 4, "repeats": 3}


def blas_threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


@pytest.fixture
def without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)


def test_beside_pytorch():
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    results = bench_softmax.compute(**SMALL)
    assert torch.get_num_threads() == threads
    assert results.versions["PyTorch"] == torch.__version__
    assert {row.kernel for row in results.rows} >= {"jit", "reference", "pytorch", bench_softmax.LIMIT}
    assert f"PyTorch {torch.__version__}" in bench_softmax.table(results)


@pytest.mark.usefixtures("without_torch")
def test_one_thread_while_it_runs_and_as_before_afterwards(monkeypatch):
    seen = []
    run = engine.run

    def spy(*arguments, **options):
        seen.append((numba.get_num_threads(), *blas_threads()))
        return run(*arguments, **options)

    monkeypatch.setattr(engine, "run", spy)
    with threadpool_limits(2, user_api="blas"):  # conftest.py lets the tests have one
        before = numba.get_num_threads(), blas_threads()
        bench_softmax.compute(**SMALL)
        assert (numba.get_num_threads(), blas_threads()) == before
    assert seen
    assert {count for counts in seen for count in counts} == {1}


def test_gigaflops():
    """N = 3: 9 pairs, causal 6; 2 products of 2 D = 8 operations a pair and head forward, 7 with the backward pass."""
    row = Results(length=3, causal=False, passes="forward", median_ms=1e-3)
    assert bench_softmax.gigaflops(row, 5, 4) == pytest.approx(9 * 2 * 8 * 5 / 1e-6 / 1e9)
    row = Results(length=3, causal=True, passes="forward + backward", median_ms=1e-3)
    assert bench_softmax.gigaflops(row, 5, 4) == pytest.approx(6 * 7 * 8 * 5 / 1e-6 / 1e9)


def test_another_dtype_is_refused():
    with pytest.raises(ValueError, match="dtype: expected float32 or float64, got int32"):
        bench_softmax.compute(**SMALL, dtype="int32")
