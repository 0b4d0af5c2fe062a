"""The compilation cache: no machine code of a text that has been changed since."""

import ast
import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import pytest
from numba.core.dispatcher import Dispatcher
from numba.core.registry import cpu_target
from numba.core.typing.templates import builtin_registry

import linattn_ref
from linattn_ref.kernels.jit import loops
from linattn_ref.kernels.jit.loops import cache
from linattn_ref.kernels.jit.loops.entrance import Kernel
from linattn_ref.kernels.jit.loops.softmax import softmax
from linattn_ref.kernels.jit.loops.sparse import pattern_softmax


def test_the_key_holds_the_text(monkeypatch):
    kernel_cache = softmax._forward.task._cache
    assert isinstance(kernel_cache, cache.PackageCache)
    codegen = cpu_target.target_context.codegen()
    before = kernel_cache._index_key((), codegen)
    assert kernel_cache._index_key((), codegen) == before
    monkeypatch.setattr(cache, "SOURCES", "edited")
    assert kernel_cache._index_key((), codegen) != before


def test_the_digest_is_of_all_the_text(tmp_path):
    files = [tmp_path / name for name in ("vector.py", "panel.py")]
    for path in files:
        path.write_text("a = 1\n")
    digests = {cache._digest(files)}
    for path in files:
        path.write_text("a = 2\n")
        digests.add(cache._digest(files))
    assert len(digests) == 3


# --- Which files are compiled in ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_file_that_is_compiled_in_is_in_the_key():
    files = {Path(importlib.import_module(name).__file__) for name in modules_compiled_in(all_kernels())}
    assert Path(pattern_softmax.__file__) in files  # the search finds what is there
    assert files <= set(cache.source_files())


def test_what_may_add_in_any_order_is_always_inlined():
    """Otherwise there are two of it, one that a process calls that compiles, and one that comes from the cache."""
    fast = [x.targetoptions for x in all_kernels() if isinstance(x, Dispatcher) and x.targetoptions.get("fastmath")]
    assert len(fast) > 5
    assert all(options.get("forceinline") for options in fast)


def all_kernels():
    """Every compiled function of the backend."""
    for module in pkgutil.walk_packages(loops.__path__, f"{loops.__name__}."):
        yield from (
            x for x in vars(importlib.import_module(module.name)).values() if isinstance(x, Dispatcher | Kernel)
        )


def modules_compiled_in(functions):
    """The modules of this package that compiled functions, and all that these call, take code or numbers from."""
    modules, found, to_do = set(), set(), list(functions)
    while to_do:
        function = text_of(to_do.pop())
        if function is None or function in found or not function.__module__.startswith("linattn_ref"):
            continue
        found.add(function)
        modules.add(function.__module__)
        for name in global_names(function.__code__) & function.__globals__.keys():
            value = function.__globals__[name]
            if not isinstance(value, ModuleType):
                modules.add(home(function.__module__, name))
            to_do += [value, *overloads(value)]
    return {name for name in modules if name.startswith("linattn_ref")}


def text_of(value):
    """The Python function behind a compiled one, an intrinsic, or a function that has another compiled in its place."""
    value = value.task if isinstance(value, Kernel) else value
    value = getattr(value, "py_func", getattr(value, "_defn", value))
    return value if isinstance(value, FunctionType) else None


def global_names(code):
    """The names in a function and in those within it."""
    within = [global_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*within)


def overloads(value):
    """What Numba compiles in place of a function."""
    templates = [kind for key, kind in builtin_registry.globals if key is value]
    return [getattr(t, "_overload_func", None) for kind in templates for t in getattr(kind, "templates", ())]


def home(module, name):
    """The module that makes what ``module`` calls ``name``: from one import statement to the next."""
    for node in ast.walk(ast.parse(Path(importlib.import_module(module).__file__).read_text())):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return home(node.module, alias.name) if node.module.startswith("linattn_ref") else node.module
    return module


# --- Where it cannot be written or read -----------------------------------------------------------------------------

ONCE = """
import numba
import numpy as np
from linattn_ref.attention.feature_maps import elu_plus_one
from linattn_ref.kernels import jit

x = np.random.default_rng(0).standard_normal(1 << 16)
def features():
    return jit.loops.linear.elu_plus_one.forward(x)[0]
np.testing.assert_allclose(features(), elu_plus_one.forward(x)[0], rtol=1e-12)
assert numba.threading_layer() == "omp"
"""
AND_IN_A_FORKED_CHILD = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
    for _ in range(2):
        assert (pool.submit(features).result() == features()).all()
"""
NO_FOLDER = (
    r"RuntimeWarning: linattn_ref\.kernels\.jit: no folder for compiled kernels can be written to: .* NUMBA_CACHE_DIR"
)
CANNOT_BE_READ = r"RuntimeWarning: linattn_ref\.kernels\.jit: compiled kernels in .* cannot be read"


def warned(script, folder, **environment):
    """How often either is told."""
    environment = {**os.environ, "NUMBA_THREADING_LAYER": "omp", "NUMBA_NUM_THREADS": "2", **environment}
    command = [sys.executable, "-W", "default::RuntimeWarning", "-c", script]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return [len(re.findall(told, result.stderr)) for told in (NO_FOLDER, CANNOT_BE_READ)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_without_a_cache_kernels_are_compiled_and_a_warning_says_so_once(tmp_path):
    """All places where one could lie are files, in which not even root can write."""
    copy, file = tmp_path / "linattn_ref", tmp_path / "file"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(linattn_ref.__file__).parent, copy, ignore=ignored, copy_function=os.symlink)
    folders = {path.parent for path in (copy / "kernels" / "jit" / "loops").rglob("*.py")}
    for path in (file, *(folder / "__pycache__" for folder in folders)):
        path.touch()
    places = dict.fromkeys(("NUMBA_CACHE_DIR", "HOME", "XDG_CACHE_HOME"), str(file / "none"))
    assert warned(ONCE + AND_IN_A_FORKED_CHILD, tmp_path, PYTHONPATH=str(tmp_path), **places) == [1, 0]


SMALLEST = """
from linattn_ref.kernels.jit.loops.cache import serial_kernel
@serial_kernel
def twice(x):
    return 2 * x
assert twice(3) == 6
"""
DAMAGED = """
import importlib, pathlib, smallest
files = [*pathlib.Path("cache").rglob("*.nb[ic]")]
assert len(files) == 2
for path in files:
    path.write_bytes(bytes(100))
for found in (0, 1):  # compiled anew, and then read
    importlib.reload(smallest)
    assert sum(smallest.twice.stats.cache_hits.values()) == found
"""


def test_a_damaged_cache_is_told_and_written_anew(tmp_path):
    """As a power cut leaves it. What is wrong is told once."""
    (tmp_path / "smallest.py").write_text(SMALLEST)
    assert warned(DAMAGED, tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache")) == [0, 1]


# --- From end to end ------------------------------------------------------------------------------------------------

RUN = """
import numpy as np
from linattn_ref.attention import pattern_softmax
from linattn_ref.attention.sparse import part
from linattn_ref.kernels import jit
q, k, v = np.random.default_rng(0).standard_normal((3, 200, 4))
pattern = (part.band(200, 200, -20, 0),)
out, _ = pattern_softmax.forward(q, k, v, pattern, kernels=jit)
expected, _ = pattern_softmax.forward(q, k, v, pattern)
np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)
print(sum(jit.loops.sparse.pattern_softmax._forward.task.stats.cache_hits.values()))
"""


BITS = """
import hashlib
import numpy as np
from linattn_ref.kernels.jit.loops.layers import layer_norm
d_y, x, (gain, bias, *_) = *np.random.default_rng(0).standard_normal((2, 120, 67)), np.ones((2, 67))
_, mean, s = layer_norm.forward(x, gain, bias, 1e-5)
print(hashlib.sha256(b"".join(each.tobytes() for each in layer_norm.backward(d_y, x, mean, s, gain))).hexdigest())
"""


@pytest.mark.slow
def test_a_process_that_compiles_gets_the_bits_of_one_that_reads_the_cache(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", BITS]
    first, again = (subprocess.run(command, env=environment, capture_output=True, text=True) for _ in range(2))
    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    assert first.stdout == again.stdout


@pytest.mark.slow
def test_a_constant_changed_with_a_warm_cache(tmp_path):
    """A copy of the package runs, runs again from its cache, and again with another number of rows to a tile."""
    copy = tmp_path / "linattn_ref"
    shutil.copytree(Path(linattn_ref.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def run():
        command = [sys.executable, "-c", RUN]
        result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return int(result.stdout)

    assert (run(), run()) == (0, 1)
    part = copy / "attention" / "sparse" / "part.py"
    text = part.read_text()
    assert text.count("TILE = 32 ") == 1
    part.write_text(text.replace("TILE = 32 ", "TILE = 64 "))
    assert run() == 0
