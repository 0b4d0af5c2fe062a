"""What the chapters assert is computed there: not a committed file compared with itself, nor a printed table.

A chapter may read a record, ``figures/NAME.json``, and assert what the text says of it. That alone would hold whatever
the package's code does. So the chapter has to compute some of the record's numbers again and compare; this module
finds out by the syntax tree whether it does. Where every name comes from is followed through assignments, loops and
the chapter's own functions: from a record, from `linattn_ref.data.reported` (a paper's printed numbers), or from a
call of the package without such numbers among its arguments, which is computed.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
CHAPTERS = sorted(NOTEBOOKS.glob("[0-9][0-9]_*.py"))
COMPUTED, PRINTED = "computed", "printed"
SETTINGS = {"seed", "settings"}  # of a record: what went into it, not what came out
# Records that no chapter can compute again in seconds, and why
BEYOND_A_CHAPTER = {
    "bench_drawing": "times",
    "bench_encoder": "times",
    "bench_speech": "times",
    "cuda_occupancy": "compiled by tools that need not be installed",
    "downstream": "trained for hours",
    "every_mechanism": "trained for hours",
    "images_short": "trained for hours",
    "mlm_curves": "trained for hours",
    "model_resources": "times",
    "resources": "times",
}


class Reader:
    """Reads a chapter from top to bottom; ``asserts`` has the origins of both sides of each comparison asserted."""

    def __init__(self, source):
        tree = ast.parse(source)
        self.package = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("linattn_ref")
            for alias in node.names
        } - {"chapter", "reported"}
        self.known = {}  # name -> its origins
        self.asserts = []  # (line, [origins of each side])
        self.read(tree.body)

    def origins(self, node):
        """The origins of an expression: names of records, `PRINTED`, `COMPUTED`; nothing if it is a constant."""
        if isinstance(node, ast.Call):
            return self.origins_of_call(node)
        if isinstance(node, ast.Name):
            return self.known.get(node.id, set())
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "reported":
            return {PRINTED}
        if isinstance(node, ast.Attribute) and node.attr in SETTINGS:
            return set()
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value in SETTINGS:
            return set()
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            outside = dict(self.known)
            for part in node.generators:
                self.bind(part.target, self.origins(part.iter))
            found = self.origins_of_all(ast.iter_child_nodes(node))
            self.known = outside
            return found
        return self.origins_of_all(ast.iter_child_nodes(node))

    def origins_of_all(self, nodes):
        return set().union(*map(self.origins, nodes))

    def origins_of_call(self, node):
        name = ast.unparse(node.func)
        if name in ("chapter.results", "chapter.record"):
            return {ast.literal_eval(node.args[0])}
        arguments = self.origins_of_all([*node.args, *(keyword.value for keyword in node.keywords)])
        root = next((part.id for part in ast.walk(node.func) if isinstance(part, ast.Name)), "")
        if root in self.package and not arguments - {COMPUTED}:
            return {COMPUTED}
        return arguments | self.origins(node.func)

    def bind(self, target, origins):
        """An item or a field that is assigned adds to the origins of the whole."""
        names = [node for node in ast.walk(target) if isinstance(node, ast.Name)]
        for node in names:
            part = isinstance(node.ctx, ast.Load)
            self.known[node.id] = origins | (self.known.get(node.id, set()) if part else set())

    def read(self, body):
        for node in body:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self.assign(target, node.value)
            elif isinstance(node, ast.AugAssign):
                self.bind(node.target, self.origins(node.target) | self.origins(node.value))
            elif isinstance(node, ast.For):
                self.bind(node.target, self.origins(node.iter))
                self.read(node.body)
            elif isinstance(node, ast.With | ast.If | ast.While):
                self.read(node.body)
            elif isinstance(node, ast.FunctionDef):
                self.define(node)
            elif isinstance(node, ast.Assert):
                for part in ast.walk(node.test):
                    if isinstance(part, ast.Compare):
                        self.compare(node, [part.left, *part.comparators])
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                self.call(node.value)

    def assign(self, target, value):
        pairs = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts)
        for one, of in zip(target.elts, value.elts, strict=True) if pairs else [(target, value)]:
            self.bind(one, self.origins(of))

    def define(self, node):
        outside, asserts = dict(self.known), self.asserts
        for argument in (*node.args.args, *node.args.kwonlyargs):
            self.known.pop(argument.arg, None)
        self.asserts = []  # of what is passed nothing is known
        self.read(node.body)
        returned = [part.value for part in ast.walk(node) if isinstance(part, ast.Return | ast.Yield) and part.value]
        found = self.origins_of_all(returned)
        self.known, self.asserts = {**outside, node.name: found}, asserts

    def call(self, node):
        name = ast.unparse(node.func)
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("append", "extend", "update"):
            self.bind(node.func.value, self.origins_of_all(node.args))
        if ("assert_" in name or name == "same") and len(node.args) > 1:
            self.compare(node, node.args[:2])

    def compare(self, node, sides):
        self.asserts.append((node.lineno, [self.origins(side) for side in sides]))


def committed(origins):
    return bool(origins) and COMPUTED not in origins


def files_compared_with_themselves(reader):
    """Lines whose sides all come from committed files, by record; those of records that are computed again left out."""
    computed_again = set().union(
        *(
            origins - {COMPUTED}
            for _, sides in reader.asserts
            for origins in sides
            if any(COMPUTED in side for side in sides)
        ),
        set(),
    )
    found = {}
    for line, sides in reader.asserts:
        if all(committed(side) for side in sides):
            for name in set().union(*sides) - {PRINTED} - computed_again:
                found.setdefault(name, []).append(line)
    return found


@cache
def reader(path):
    return Reader(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_no_assert_compares_committed_files_alone(path):
    found = files_compared_with_themselves(reader(path))
    assert {name: lines for name, lines in found.items() if name not in BEYOND_A_CHAPTER} == {}


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_no_assert_is_about_printed_numbers_alone(path):
    asserts = reader(path).asserts
    assert [line for line, sides in asserts if set().union(*sides) == {PRINTED}] == []


def test_every_exception_is_needed():
    needed = set().union(*(files_compared_with_themselves(reader(path)) for path in CHAPTERS))
    assert set(BEYOND_A_CHAPTER) <= needed


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("assert kept.a < kept.b", [3]),
        ("assert kept.a < 0.5", []),  # the text against the file
        ("again = page.forward(1.0)\nassert abs(again - kept.a) < 1e-9\nassert kept.a < kept.b", []),
        ("again = page.forward(seed=kept.settings['seed'])\nassert again == kept.a\nassert kept.a < kept.b", []),
        ("found = page.forward(kept.a)\nassert found < kept.b", [4]),  # a function of the file
        ("rows = []\nfor x in kept.a:\n    rows.append(x)\nassert rows[0] < rows[1]", [6]),
        ("def of(i):\n    return kept.a[i]\nassert of(0) < of(1)", [5]),
        ("np.testing.assert_allclose(kept.a, kept.b)", [3]),
    ],
)
def test_files_compared_with_themselves_are_found(text, lines):
    source = f"from linattn_ref.attention import page\nkept = chapter.results('some')\n{text}"
    assert files_compared_with_themselves(Reader(source)) == ({"some": lines} if lines else {})
