"""Before anything else is imported: threads enough to notice a race, and no more. Before xdist starts its workers: the
kernels are compiled."""

import gc
import os
import subprocess
import sys
from functools import wraps
from inspect import isfunction
from itertools import product
from pathlib import Path

os.environ.setdefault("NUMBA_NUM_THREADS", "4")  # the number of cores otherwise, and one core could not show a race
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # each worker has a core; more threads would wait for one another

import called
import pytest

# jsonschema, which nbformat imports, would build grammars of web addresses for some seconds in each worker.
sys.modules.setdefault("rfc3987_syntax", None)

SUPPORT = Path(__file__).with_name("support")

gc.disable()  # while tests are collected, of which none goes away

seen: dict[str, set[str]] = {}  # by this process, or by xdist's workers together


def pytest_addoption(parser):
    group = parser.getgroup("mutants")
    group.addoption("--mutants", type=int, default=18, help="how many mistakes -m mutants draws")
    group.addoption("--seed", type=int, default=0, help="from which seed")


def is_default_run(config):
    """README's test command, and no part of it."""
    option = config.option
    chosen = option.keyword or option.deselect or option.ignore or getattr(option, "lf", False) or option.collectonly
    return config.args_source is config.ArgsSource.TESTPATHS and "not slow" in option.markexpr and not chosen


def pytest_configure(config):
    given = getattr(config, "workerinput", None)
    if is_default_run(config) if given is None else given["watch"]:
        called.watch()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    node.workerinput["watch"] = is_default_run(node.config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config):
    """Each kernel is compiled once, not once by each worker. What fails is left to the tests.

    Only where all tests are run: for some of them the workers compile what these need.
    """
    if config.args_source is not config.ArgsSource.TESTPATHS:
        return
    slow = [] if "not slow" in config.option.markexpr else ["slow"]
    dtypes = ("float32", "float64") if slow else ("float64",)
    commands = [
        [sys.executable, str(SUPPORT / "compile_kernels.py"), *one, *slow]
        for one in product(dtypes, ("sums", "scores"))
    ]
    for process in [subprocess.Popen(command, stderr=subprocess.DEVNULL) for command in commands]:
        process.wait()


@pytest.fixture(scope="module")
def float32_in_numpy(request):
    """For tests of what calls kernels in float32 and is not one: left to the pages, unless slow tests are run too.

    The default run compiles each kernel for float64 alone.
    """
    import causal_page
    import delta_page
    import elu_page
    import features_page
    import lsh_page
    import pattern_page
    import softmax_page

    from linattn_ref.kernels import common
    from linattn_ref.kernels.jit import loops
    from linattn_ref.nested import leaves

    pages = {
        "softmax": softmax_page,
        "causal_product": causal_page,
        "pattern_softmax": pattern_page,
        "delta_product": delta_page,
        "elu_plus_one": elu_page,
        "lsh": lsh_page,
        "exponential_features": features_page,
    }

    def in_numpy(compiled, numpy, is_page):
        @wraps(compiled)
        def function(*arrays, **options):
            if all(x.dtype != "float32" for _, x in leaves([*arrays, *options.values()], strict=False)):
                return compiled(*arrays, **options)
            out = options.pop("out", None) if is_page else None
            results = numpy(*arrays, **options)
            if out is None:
                return results
            out[...] = results[0]
            return out, *results[1:]

        return function

    with pytest.MonkeyPatch.context() as patch:
        groups = [getattr(loops, group) for group in loops.__all__]
        names = [(group, name) for group in groups for name in group.__all__]
        for group, name in names if "not slow" in request.config.option.markexpr else ():
            kernel = getattr(group, name)
            twin = pages.get(name) or getattr(common, name, None)
            for word, compiled in list(vars(kernel).items()):
                if isfunction(compiled) and hasattr(twin, word):
                    patch.setattr(kernel, word, in_numpy(compiled, getattr(twin, word), name in pages))
        yield


def pytest_collection_finish():
    """Thousands of tests stay until the end: without this ``gc.collect()`` goes through all of them again each time.

    It still goes through what tests keep, such as modules. As often as by default, that is a fifth of the run.
    """
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 50)


def pytest_sessionfinish(session):
    """A worker says what it called; the first process, whether that is everything."""
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["seen"] = {word: sorted(names) for word, names in called.seen().items()}
        return
    if not seen:
        seen.update(called.seen())
    if is_default_run(config) and not (session.shouldstop or session.shouldfail):
        seen["never called"] = set(called.all_functions()) - seen["called"]
        seen["never compiled"] = seen["kernels"] - seen["signatures"]
        if session.exitstatus == pytest.ExitCode.OK and (seen["never called"] or seen["never compiled"]):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    for word, names in getattr(node, "workeroutput", {}).get("seen", {}).items():
        seen.setdefault(word, set()).update(names)


def pytest_terminal_summary(terminalreporter, config):
    titles = {
        "never called": "public functions that no test of a default run calls",
        "never compiled": "compiled kernels that no test of a default run calls",
    }
    if getattr(config.option, "dist", "no") != "no":
        titles["anew"] = "compiled by a worker: compile_kernels.py can do so once for all of them"
    for word, title in titles.items():
        if seen.get(word):
            terminalreporter.section(title)
            for name in sorted(seen[word]):
                terminalreporter.line(name)
