"""Which lines of a backward pass can be to blame, if some of its gradients are wrong and others are right.

A gradient is computed by the lines that its value depends on: its *slice*. A line that is in the slice of every wrong
gradient, and of no right one, is suspected. (What has no gradient in its slice, nothing can be said of.)

>>> source = '''
... def backward(d_out, saved):
...     q, k, p = saved
...     d_a = p * d_out
...     d_q = d_a @ k
...     d_k = d_a.T @ q
...     return Gradients(d_q, d_k)
... '''
>>> sorted(suspects(source, ("q", "k"), {"k"})), sorted(suspects(source, ("q", "k"), {"q", "k"}))
([6], [4])

References
----------
Weiser (1984), "Program slicing", section 2 (here without regard to order and branches: any assignment to a name).
"""

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = ["slices", "suspects"]


class Step(NamedTuple):
    """A statement: names that it assigns, names that it reads, its lines."""

    made: frozenset[str]
    read: frozenset[str]
    lines: frozenset[int]


def suspects(source: str, fields: Sequence[str], wrong: set[str]) -> set[int]:
    """Lines of ``backward`` in the text of a page, from 1.

    Parameters
    ----------
    source : str
    fields : sequence of str
        What the parts of ``backward``'s result are called, in order.
    wrong : set of str
        Of these, those that are wrong; the others are right.
    """
    found = slices(source, fields)
    accused = [found[field] for field in fields if field in wrong and field in found]
    cleared = set().union(*(lines for field, lines in found.items() if field not in wrong))
    if not accused:
        return set()
    in_all, in_any = set.intersection(*accused), set.union(*accused)
    return in_all - cleared or in_any - cleared or in_all or in_any


def slices(source: str, fields: Sequence[str]) -> dict[str, set[int]]:
    """The lines that each part of the result depends on, by its name."""
    tree = ast.parse(source).body
    functions = {node.name: node for node in tree if isinstance(node, ast.FunctionDef)}
    if "backward" not in functions:  # it is another page's
        named = (node for node in tree if isinstance(node, ast.Assign) and "backward" in _names(node.targets[0]))
        lines = {line for node in named for line in _lines(node)}
        return dict.fromkeys(fields, lines)
    steps = [step for node in ast.walk(functions["backward"]) for step in _steps(node, functions)]
    found: dict[str, set[int]] = {}
    for node in ast.walk(functions["backward"]):
        if isinstance(node, ast.Return) and node.value:
            for field, part in _parts(node.value, fields):
                found.setdefault(field, set()).update(_computed(part, functions), *_behind(_names(part), steps))
    return found


def _parts(value: ast.expr, fields: Sequence[str]) -> Iterator[tuple[str, ast.expr]]:
    """The expression of each field; where they are not told apart, the whole for all."""
    if isinstance(value, ast.Call) and not any(isinstance(each, ast.Starred) for each in value.args):
        named = {word.arg: word.value for word in value.keywords if word.arg}
        if isinstance(value.func, ast.Name) and value.func.id == "Gradients":
            yield from (dict(zip(fields, value.args, strict=False)) | named).items()
            return
    yield from ((field, value) for field in fields)


def _behind(names: set[str], steps: list[Step]) -> Iterator[frozenset[int]]:
    """The lines of all steps that these names depend on."""
    waiting, known = [*names], set(names)
    while waiting:
        name = waiting.pop()
        for step in steps:
            if name in step.made:
                yield step.lines
                waiting += step.read - known
                known |= step.read


def _steps(node: ast.AST, functions: dict[str, ast.FunctionDef]) -> Iterator[Step]:
    """What a node of the tree assigns; pairs that are assigned at once, each for itself."""
    if isinstance(node, ast.Assign):
        pairs = [pair for target in node.targets for pair in _pairs(target, node.value)]
    elif isinstance(node, ast.AugAssign):
        pairs = [(node.target, node.value), (node.target, node.target)]
    elif isinstance(node, ast.For):
        pairs = [(node.target, node.iter)]
    else:
        return
    for target, value in pairs:
        places = {name for part in ast.walk(target) if isinstance(part, ast.Subscript) for name in _names(part.slice)}
        made, read = _names(target) - places, _names(value) | places
        yield Step(frozenset(made), frozenset(read), frozenset(_computed(value, functions)))


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """``a, b = x, y``, and ``a, b = (f(z) for z in (x, y))``."""
    values = value.generators[0].iter if isinstance(value, ast.GeneratorExp) else value
    if isinstance(target, ast.Tuple) and isinstance(values, ast.Tuple) and len(target.elts) == len(values.elts):
        return [*zip(target.elts, values.elts, strict=True)]
    return [(target, value)]


def _computed(value: ast.expr, functions: dict[str, ast.FunctionDef]) -> set[int]:
    """The lines that compute an expression, those of the page's own functions too; none for a mere name."""
    if isinstance(value, ast.Name | ast.Attribute):
        return set()
    called = [part for name in _names(value) if name in functions for part in functions[name].body]
    return {line for part in (value, *called) for line in _lines(part)}


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _lines(node: ast.AST) -> Iterator[int]:
    yield from range(node.lineno, (node.end_lineno or 0) + 1)  # type: ignore[attr-defined]
