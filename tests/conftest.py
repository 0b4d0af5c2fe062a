"""Before anything else is imported: threads enough to notice a race, and no more. Before xdist starts its workers: the
kernels are compiled. For all: hypothesis draws the same every time."""

import gc
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

os.environ.setdefault("NUMBA_NUM_THREADS", "4")  # the number of cores otherwise, and one core could not show a race
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # each worker has a core; more threads would wait for one another

import pytest
from hypothesis import settings

# The same examples in every run; no deadline, since the first call of a Numba kernel compiles it.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None, max_examples=20)
settings.load_profile("repeatable")

COMPILE = Path(__file__).with_name("compile_kernels.py")
compiled_by_workers: set[str] = set()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config):
    """Each kernel is compiled once, not once by each worker. What fails is left to the tests.

    Only where all tests are run: for some of them the workers compile what these need.
    """
    if config.args_source is not config.ArgsSource.TESTPATHS:
        return
    slow = [] if "not slow" in config.option.markexpr else ["slow"]
    dtypes = ("float32", "float64") if slow else ("float64",)
    commands = [[sys.executable, str(COMPILE), *one, *slow] for one in product(dtypes, ("sums", "scores"))]
    for process in [subprocess.Popen(command, stderr=subprocess.DEVNULL) for command in commands]:
        process.wait()


def pytest_collection_finish():
    """Thousands of tests stay until the end: without this ``gc.collect()`` goes through all of them again each time."""
    gc.freeze()


def pytest_sessionfinish(session):
    """A worker says what it had to compile all the same."""
    if hasattr(session.config, "workeroutput"):
        package = "linattn_ref.kernels.jit."
        session.config.workeroutput["compiled"] = [
            f"{name.removeprefix(package)}.{title}{signature}"
            for name, module in list(sys.modules.items())
            if name.startswith(package)
            for title, value in vars(module).items()
            for kernel in [getattr(value, "threaded", value)]
            if getattr(kernel, "__module__", None) == name
            and getattr(getattr(kernel, "_cache", None), "cache_path", None)
            for signature in kernel.stats.cache_misses
        ]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    compiled_by_workers.update(getattr(node, "workeroutput", {}).get("compiled", []))


def pytest_terminal_summary(terminalreporter):
    if compiled_by_workers:
        terminalreporter.section("compiled by a worker: compile_kernels.py can do so once for all of them")
        for signature in sorted(compiled_by_workers):
            terminalreporter.line(signature)
