"""What importing takes: NumPy alone for attention and its reference kernels; the arrows between packages, one way."""

import ast
import graphlib
import json
import subprocess
import sys
import textwrap
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import linattn_ref

PACKAGE = Path(linattn_ref.__file__).parent
FILES = sorted((PACKAGE / "attention").rglob("*.py"))
ATTENTION = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__") for path in FILES
]
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


# What else comes in: nothing, or little of Python's library; numpy.random, and what that imports of Python's library.
ADDED = {"linattn_ref": 0, "linattn_ref.attention.softmax": 5, "linattn_ref.gradcheck": 40}


def test_importing_adds_little_to_numpy():
    """Each with those before it; though Numba, SciPy and matplotlib are installed here."""
    code = f"""
    import importlib, inspect, json, linecache, sys  # NumPy 2.0 leaves some of them out
    import numpy.typing
    before = set(sys.modules)
    for name in {[*ADDED]}:
        importlib.import_module(name)
        print(json.dumps(sorted(set(sys.modules) - before)))
    """
    installed = set(packages_distributions()) - {"numpy"}
    assert installed > {"numba", "scipy", "matplotlib"}
    for name, line in zip(ADDED, run(code).splitlines(), strict=True):
        others = [module for module in json.loads(line) if module.partition(".")[0] != "linattn_ref"]
        assert not installed & {module.partition(".")[0] for module in others}, name
        assert len(others) <= ADDED[name], name


# --- Arrows ---------------------------------------------------------------------------------------------------------

COMMANDS = ("bench", "conform", "figures", "generate", "homework", "lecture", "spectrum", "train")
# Each may import what stands above it, and itself; those of one tuple do not know each other.
LAYERS = (
    ("lazy", "nested", "visible", "telling", "versions", "atomic", "clone"),
    ("op",),
    ("nn.layer_norm",),  # needs NumPy and nothing of layers; the Long-Short Transformer has two
    ("attention",),
    ("nn", "training"),
    ("kernels.common",),
    ("kernels.jit", "kernels.cuda", "kernels"),
    ("models", "theory", "data", "conform", "gradcheck"),
    ("homework", "lecture.slides.deck"),  # which reads Markdown, of benches too
    ("experiments",),
    ("lecture",),
    ("cli.options",),
    tuple(f"cli.{name}" for name in COMMANDS),
    ("cli",),
    ("__main__",),
)
# An array of Numba's on a GPU needs what the cuda backend knows of the device.
EXCEPTION = "linattn_ref.op.libraries imports linattn_ref.kernels.cuda.loops.device"
# The same within experiments: the folders of figures stand beside one another.
SHARED = (("publishing",), ("measuring",))
FIGURES = ("rank", "fewer_keys", "features", "recurrence", "sparse", "cost", "schematics", "learned")
EXPERIMENTS = (*SHARED, ("learning",), FIGURES, ("benches",))


def modules():
    """Every module of the package, by name: its file."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = (PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


def statements(node):
    """Those inside of it, at any depth; no statement stands in an expression."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield child
            yield from statements(child)


def imported_by(path, modules):
    """What a file imports, wherever in it: ``from a import b`` is ``a.b`` if that is a module, else ``a``."""
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from {name if name in modules else node.module for name in names}
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.fixture(scope="module")
def graph():
    """Each module's name, and the modules of the package that it imports."""
    found = modules()
    return {name: {other for other in imported_by(path, found) if other in found} for name, path in found.items()}


def test_no_module_imports_itself_by_way_of_others(graph):
    """Not from inside a function either, which only hides a cycle."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" is imported by ".join(error.args[1]))


def against(graph, inside, layers):
    """Imports that go the wrong way between the parts of the package ``inside``."""
    rank = {f"{inside}.{part}": number for number, layer in enumerate(layers) for part in layer}
    ranked = 0
    assert rank.keys() <= graph.keys()

    def part_of(name):
        return next((part for part in rank if f"{name}.".startswith(f"{part}.")), None)

    for here, others in graph.items():
        assert part_of(here) or not here.startswith(f"{inside}."), f"{here} stands in no layer"
        for there in others:
            a, b = part_of(here), part_of(there)
            if a != b and None not in (a, b):
                ranked += 1
                if rank[a] <= rank[b]:
                    yield f"{here} imports {there}"
    assert ranked  # it does see imports


def test_arrows_point_one_way(graph):
    """experiments -> theory, models, data -> backends -> nn, training -> attention -> op."""
    assert list(against(graph, "linattn_ref", LAYERS)) == [EXCEPTION]


def test_arrows_between_experiments_point_one_way(graph):
    """Benches and figures -> measuring -> publishing; no folder of figures -> another."""
    assert list(against(graph, "linattn_ref.experiments", EXPERIMENTS)) == []
