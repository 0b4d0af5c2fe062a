"""What importing takes: NumPy alone for attention and its reference kernels; the arrows between packages, one way."""

import ast
import json
import subprocess
import sys
import textwrap
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import linattn_ref

PACKAGE = Path(linattn_ref.__file__).parent
ATTENTION = [f"linattn_ref.attention.{path.stem}" for path in sorted((PACKAGE / "attention").glob("*.py"))]
NUMPY_ALONE = ["linattn_ref", *ATTENTION, "linattn_ref.kernels.reference", "linattn_ref.gradcheck"]

# Finds every module first, and says no to those that are neither NumPy, nor ours, nor Python's own.
ONLY_NUMPY = """
import importlib, importlib.abc, json, sys

class OnlyNumpy(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in {"numpy", "linattn_ref"} and top not in sys.stdlib_module_names:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, OnlyNumpy())
"""


def run(code):
    """Standard output of the code in a fresh interpreter."""
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_numpy_alone_is_enough():
    """With everything else blocked, Numba included, attention can be imported and called."""
    code = f"""
    for name in {NUMPY_ALONE}:
        importlib.import_module(name)
    import numpy as np
    from linattn_ref.attention import softmax
    x = np.ones((3, 2))
    out, saved = softmax.forward(x, x, x)
    softmax.backward(out, saved)
    print("ran")
    """
    assert run(ONLY_NUMPY + textwrap.dedent(code)) == "ran\n"


def test_the_block_does_block():
    """Or the test above could not fail; and the Numba room says what it needs."""
    code = """
    try:
        import linattn_ref.kernels.jit
    except ImportError as error:
        print(error)
    """
    assert "linattn_ref.kernels.jit needs Numba" in run(ONLY_NUMPY + textwrap.dedent(code))


# What else comes in: nothing; numpy.typing; numpy.random, and what that imports of Python's library.
ADDED = {"linattn_ref": 0, "linattn_ref.attention.softmax": 5, "linattn_ref.gradcheck": 40}


@pytest.mark.parametrize("name", ADDED)
def test_importing_adds_little_to_numpy(name):
    """Though Numba, SciPy and matplotlib are installed here."""
    code = f"""
    import json, sys
    import numpy
    before = set(sys.modules)
    import {name}
    print(json.dumps(sorted(set(sys.modules) - before)))
    """
    others = [module for module in json.loads(run(code)) if module.partition(".")[0] != "linattn_ref"]
    installed = set(packages_distributions()) - {"numpy"}
    assert installed > {"numba", "scipy", "matplotlib"}
    assert not installed & {module.partition(".")[0] for module in others}
    assert len(others) <= ADDED[name]


# --- Arrows ---------------------------------------------------------------------------------------------------------

# Each may import what stands to its left, and itself; those of one tuple do not know each other.
LAYERS = (
    ("kernels",),
    ("attention",),
    ("nn",),
    ("models", "theory", "training"),
    ("experiments",),
    ("cli",),
    ("__main__",),
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def imports(path):
    """The names of the packages of ``linattn_ref`` that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top == "linattn_ref" and rest:
                yield rest.partition(".")[0]


def test_arrows_point_one_way():
    """experiments -> theory, models, training -> nn -> attention -> kernels."""
    seen = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for there in set(imports(path)) - {here}:
            seen.add((here, there))
            if here in RANK and there in RANK:
                assert RANK[there] < RANK[here], f"{path.relative_to(PACKAGE)} imports linattn_ref.{there}"
    assert ("attention", "kernels") in seen  # it does see imports
