"""Mistakes drawn from the text of the package by its syntax tree: a sign, a constant, an axis, a term or a mask that is
missing, a place too far, a comparison. ``test_mutants.py`` makes each in a copy and asks whether the tests notice.

They are spread evenly over the folders of :data:`STRATA`, then over their files, then over the kinds. Left out is what
changes no number: names and annotations, what stands in errors and messages, and the sizes of tiles, which are
constants of a module.
"""

import ast
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

STRATA = ("attention", "nn", "training", "models", "op", "kernels/common", "kernels/jit", "data")
SIGNS = {ast.Add: ("+", "-"), ast.Sub: ("-", "+")}
LOGIC = {ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.And: ("and", "or"), ast.Or: ("or", "and")}
COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
}
MASKS = {"key_mask": "None", "causal": "False", "mask": "None"}


class Generated(NamedTuple):
    kind: str
    file: str  # in the package
    line: int
    start: int  # bytes of the file's text
    stop: int
    new: str

    def apply(self, text: bytes) -> bytes:
        return text[: self.start] + self.new.encode() + text[self.stop :]


def draw(package: Path, count: int, seed: int) -> list[Generated]:
    """``count`` different mutants, the same for the same text and seed."""
    rng = random.Random(seed)
    files = {each: sorted((package / each).rglob("*.py")) for each in STRATA}
    sites: dict[Path, dict[str, list[Generated]]] = {}
    drawn: list[Generated] = []
    while len(drawn) < count:
        folder = STRATA[len(drawn) % len(STRATA)]
        path = rng.choice(files[folder])
        if path not in sites:
            sites[path] = defaultdict(list)
            for mutant in mutants_of(path, str(path.relative_to(package))):
                sites[path][mutant.kind].append(mutant)
        if sites[path]:
            mutant = rng.choice(sites[path][rng.choice(sorted(sites[path]))])
            if mutant not in drawn and is_another(mutant, path.read_bytes()):
                drawn.append(mutant)
    return drawn


def mutants_of(path: Path, file: str) -> Iterator[Generated]:
    """All that can be made in a file; a few do not compile, or are the same program: :func:`is_another`."""
    text = path.read_bytes()
    tree = ast.parse(text)
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def span(node: ast.AST) -> tuple[int, int]:
        return (
            starts[node.lineno - 1] + node.col_offset,
            starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def source(node: ast.AST) -> str:
        start, stop = span(node)
        return text[start:stop].decode()

    def between(left: ast.AST, right: ast.AST, old: str, new: str) -> tuple[int, int, str]:
        """The operator, which is the first of that sign behind its left side."""
        start = text.index(old.encode(), span(left)[1], span(right)[0])
        return start, start + len(old), new

    for node in expressions(tree):
        for kind, start, stop, new in changes(node, span, source, between):
            yield Generated(kind, file, node.lineno, start, stop, new)


def is_another(mutant: Generated, text: bytes) -> bool:
    """Whether it is a program, and not the one it was."""
    try:
        return ast.dump(ast.parse(mutant.apply(text))) != ast.dump(ast.parse(text))
    except SyntaxError:
        return False


def expressions(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that compute."""
    waiting: list[ast.AST] = list(reversed(tree.body))  # type: ignore[attr-defined]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("warn", "print", "NamedTuple"):
            continue
        if isinstance(node, ast.Assign | ast.AnnAssign) and node in tree.body:  # type: ignore[attr-defined]
            continue  # __all__, sizes of tiles, aliases of types
        yield node
        apart = {"annotation", "returns", "decorator_list", "type_params"}
        for name, value in ast.iter_fields(node):
            if name not in apart:
                values = value if isinstance(value, list) else [value]
                waiting.extend(each for each in reversed(values) if isinstance(each, ast.AST))


def is_text(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in ast.walk(node))


def changes(node, span, source, between):
    """``(kind, start, stop, new)``: what can be wrong at one node."""
    match node:
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right) if not (is_text(left) or is_text(right)):
            yield "sign", *between(left, right, *SIGNS[type(op)])
            one = isinstance(right, ast.Constant) and right.value == 1
            yield "off by one" if one else "dropped term", *span(node), f"({source(left)})"
        case ast.BinOp(left=left, op=ast.Mult(), right=right) if not (is_text(left) or is_text(right)):
            yield "dropped term", *span(node), f"({source(left)})"
            yield "dropped term", *span(node), f"({source(right)})"
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr() as op, right=right):
            yield "mask", *between(left, right, *LOGIC[type(op)])
        case ast.BoolOp(op=op, values=[left, right, *_]):
            yield "mask", *between(left, right, *LOGIC[type(op)])
        case ast.AugAssign(target=left, op=ast.Add() | ast.Sub() as op, value=right) if not is_text(right):
            yield "sign", *between(left, right, *(f"{sign}=" for sign in SIGNS[type(op)]))
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            yield "sign", *span(node), f"({source(operand)})"
        case ast.UnaryOp(op=ast.Invert() | ast.Not(), operand=operand):
            yield "mask", *span(node), f"({source(operand)})"
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARISONS:
            yield "comparison", *between(left, right, *COMPARISONS[type(op)])
        case ast.Slice(lower=lower, upper=upper):
            for bound in (lower, upper):
                if bound is not None:
                    yield "off by one", *span(bound), f"{source(bound)} + 1"
        case ast.Call(func=ast.Name(id="range" | "prange"), args=args):
            yield "off by one", *span(args[:2][-1]), f"{source(args[:2][-1])} - 1"
        case ast.Call(func=ast.Name(id="shown"), args=[first, *_]):
            yield "mask", *span(node), source(first)
        case ast.Call(func=ast.Attribute(attr="where"), args=[condition, _, _]):
            yield "mask", *span(condition), f"~({source(condition)})"
        case ast.keyword(
            arg=("axis" | "axes"), value=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) as v
        ):
            yield "axis", *span(v), str({1: -2, 2: -1}.get(value, -1))
        case ast.keyword(arg="axis", value=ast.Constant(value=int(value)) as v):
            yield "axis", *span(v), str(value + 1)
        case ast.keyword(arg=("key_mask" | "causal" | "mask") as word, value=value) if not isinstance(
            value, ast.Constant
        ):
            yield "mask", *span(value), MASKS[word]
        case ast.Constant(value=bool() | str() | bytes() | None):
            pass
        case ast.Constant(value=int(value)):
            yield "constant", *span(node), str(value + 1)
        case ast.Constant(value=float(value)):
            yield "constant", *span(node), repr(1.5 * value if value else 1.0)
