"""The bench of a second thread: every task in both passes, on one thread and on two."""

import numba
import pytest
from threads import several_threads

from linattn_ref.experiments.benches import bench_threads
from linattn_ref.experiments.measuring.timing import second_thread
from linattn_ref.experiments.publishing import style
from linattn_ref.experiments.publishing.restore import Results

SMALL = {"length": 8, "keys": 8, "widths": (4,), "heads": 2, "repeats": 1}


@several_threads
def test_calls_run_on_one_thread_on_two_and_both_at_once():
    before, seen = numba.get_num_threads(), []
    found = second_thread(lambda: seen.append(numba.get_num_threads()), [lambda: seen.append("a"), lambda: None], 2)
    assert seen == [1, 2, "a", "a"] * 3
    assert found["ratio"] == found["one_ms"] / found["two_ms"]
    assert numba.get_num_threads() == before


@several_threads
@pytest.mark.slow  # kernels are compiled for float32 for the slow tests
def test_all_tasks():
    results = bench_threads.compute(**SMALL)
    assert len(results.rows) == 7 * 2
    assert bench_threads.table(results).count("\n| ") == 2 + 7 * 2 - 1
    with style.use():
        bench_threads.draw(results).draw_without_rendering()


def test_the_note_says_how_many_keys():
    results = Results(length=4096, keys=2048, heads=8, repeats=1, rows=())
    assert "N = 4096 (softmax 2048), " in bench_threads.table(results)


@several_threads
@pytest.mark.parametrize("option", SMALL)
def test_counts_are_at_least_1(option):
    with pytest.raises(ValueError, match=f"^{option}: expected "):
        bench_threads.compute(**{**SMALL, option: 0})


def test_one_thread_is_refused(monkeypatch):
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 1)
    with pytest.raises(ValueError, match=r"^NUMBA_NUM_THREADS: expected at least 2"):
        bench_threads.compute(**SMALL)


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS > 1, reason="is what a run with one thread asks")
def test_there_have_to_be_two():
    with pytest.raises(ValueError, match=r"^NUMBA_NUM_THREADS: expected at least 2, got 1"):
        bench_threads.compute(**SMALL)
    with pytest.raises(ValueError, match="threads must be between 1 and 1"):
        second_thread(lambda: None, [lambda: None] * 2, 1)
