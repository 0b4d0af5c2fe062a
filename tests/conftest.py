"""Before anything else is imported: threads enough to notice a race, and no more. Before xdist starts its workers: the
kernels are compiled."""

import gc
import os
import subprocess
import sys
from inspect import isfunction
from itertools import product
from pathlib import Path

os.environ.setdefault("NUMBA_NUM_THREADS", "4")  # the number of cores otherwise, and one core could not show a race
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # each worker has a core; more threads would wait for one another

import pytest

COMPILE = Path(__file__).with_name("support") / "compile_kernels.py"
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


@pytest.fixture(scope="module")
def float32_in_numpy(request):
    """For tests of what calls kernels in float32 and is not one: left to ``reference``, unless slow tests are run too.

    The default run compiles each kernel for float64 alone.
    """
    from linattn_ref.kernels import jit, reference
    from linattn_ref.nested import leaves

    def in_numpy(compiled, numpy):
        def function(*arrays, **options):
            single = any(x.dtype == "float32" for _, x in leaves([*arrays, *options.values()], strict=False))
            return (numpy if single else compiled)(*arrays, **options)

        return function

    with pytest.MonkeyPatch.context() as patch:
        for name in jit.__all__ if "not slow" in request.config.option.markexpr else ():
            kernel, twin = getattr(jit, name), getattr(reference, name, None)
            for word, compiled in list(vars(kernel).items()):
                if isfunction(compiled) and hasattr(twin, word):
                    patch.setattr(kernel, word, in_numpy(compiled, getattr(twin, word)))
        yield


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
