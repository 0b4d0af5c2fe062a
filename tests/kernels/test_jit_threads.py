"""Kernels of the room `jit` in a forked child, and in several Python threads at once, on each of Numba's layers."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest
from numba.np.ufunc.parallel import _check_tbb_version_compatible

SET_UP = """
import multiprocessing, sys, threading
from concurrent.futures import ProcessPoolExecutor
import numpy as np
import numba
from linattn_ref.kernels import jit

x = np.random.default_rng(0).standard_normal(1 << 16)  # eight tasks
def features():
    return jit.loops.linear.elu_plus_one.forward(x)[0]
def same(result):
    return (result == expected).all()
expected = features()
assert numba.threading_layer() == sys.argv[1]
"""

FORK = """
with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
    assert all(same(pool.submit(features).result()) for _ in range(4))
assert same(features())  # and the parent goes on
"""

AT_ONCE = """
results = []
def work():
    for _ in range(200):
        results.append(same(features()))
workers = [threading.Thread(target=work) for _ in range(4)]
for worker in workers: worker.start()
for worker in workers: worker.join()
assert results == [True] * 800
"""

# The thread that has its turn while another forks is not in the child.
FORK_IN_THE_MIDDLE = """
from linattn_ref.kernels.common import softmax
from linattn_ref.kernels.jit.loops import threads
def is_free():
    return not softmax.TURN.locked()
with threads.process.turn, softmax.TURN, ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
    assert same(pool.submit(features).result(timeout=20))
    assert pool.submit(is_free).result(timeout=20)
"""


def layers():
    try:
        _check_tbb_version_compatible()
    except ImportError:
        return ("omp", "workqueue")
    return ("tbb", "omp", "workqueue")


@pytest.mark.parametrize("layer", layers())
def test_several_threads_at_once_and_forked_children(layer):
    """One process for all of it: to start one takes a second. A child is forked after a kernel has run, and while."""
    forks = (FORK, FORK_IN_THE_MIDDLE) if layer == "workqueue" else (FORK,)
    run("".join((AT_ONCE, *forks) if hasattr(os, "fork") else (AT_ONCE,)), layer)


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="is itself what such a run skips")
def test_where_one_thread_is_allowed_tests_of_several_are_skipped():
    """And none fails: the module with most of them, in a process of its own."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-k", "threads and linear", "contract/test_rooms.py"]
    environment = {**os.environ, "NUMBA_NUM_THREADS": "1"}
    folder = Path(__file__).parents[1]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert "NUMBA_NUM_THREADS allows only one" in result.stdout
    assert "passed" not in result.stdout
    assert result.returncode == 0, result.stdout


def run(script, layer):
    environment = {**os.environ, "NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": "2"}
    command = [sys.executable, "-W", "ignore", "-c", SET_UP + script, layer]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
