"""Functions taken out of pages: the student's text, bodies removed, and the solution's; both run with NumPy alone.

Only definitions that are needed come along. Decorators of the layer around the pages are left out, annotations are not
evaluated, and what a page imports from this package becomes a file of the folder ``given``, cut down likewise.
"""

import ast
import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

from linattn_ref.homework.sheet import Mistake, Part, Sheet, template

__all__ = ["Texts", "mistaken", "texts"]

EQUATIONS = r"\(\d+\)(?:-\(\d+\))?"  # (3), or (3)-(5)


class Texts(NamedTuple):
    """What is in a folder: ``answer.py``, and files of ``given`` by name."""

    answer: str
    given: dict[str, str]


class Module:
    """The definitions of a page or of a sheet's own code, by name."""

    def __init__(self, source: str) -> None:
        self.lines, self.tree = source.splitlines(), ast.parse(source)
        self.nodes: dict[str, Any] = {}
        self.imports: dict[str, tuple[str, str]] = {}  # name: module, its name there ("" for the module itself)
        for node in self.tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                self.nodes[node.name] = node
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for name in (x.id for target in targets for x in ast.walk(target) if isinstance(x, ast.Name)):
                    self.nodes[name] = node
            elif isinstance(node, ast.Import):
                self.imports |= {x.asname or x.name: (x.name, "") for x in node.names}
            elif isinstance(node, ast.ImportFrom):
                source = str(node.module)
                star = importlib.import_module(source).__all__ if node.names[0].name == "*" else []
                self.imports |= {name: (source, name) for name in star}
                self.imports |= {x.asname or x.name: (source, x.name) for x in node.names}

    def text(self, node: Any) -> str:
        return "\n".join(self.lines[node.lineno - 1 : node.end_lineno])

    def closure(self, names: list[str], written: dict[str, str]) -> tuple[list[str], set[str]]:
        """What these need, in the order of the file, and imports (``module.name``); some are ``written`` otherwise."""
        found, imported, left = set[str](), set[str](), [*names]
        while left:
            name = left.pop()
            if name.partition(".")[0] in self.imports:
                imported.add(name)
            elif name in self.nodes and name not in found:
                found.add(name)
                left += uses(ast.parse(written[name]) if name in written else self.nodes[name])
        return sorted(found, key=lambda name: self.nodes[name].lineno), imported


def uses(node: Any) -> Iterator[str]:
    """The names in a definition, annotations and decorators left out; ``a.b`` where a name has its part taken."""
    if isinstance(node, ast.FunctionDef):
        parts = [*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body]
    elif isinstance(node, ast.AnnAssign):
        parts = [node.value] if node.value else []
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        yield f"{node.value.id}.{node.attr}"
        parts = [node.value]
    else:
        if isinstance(node, ast.Name):
            yield node.id
        parts = [x for x in ast.iter_child_nodes(node) if x not in getattr(node, "decorator_list", ())]
    for part in parts:
        yield from uses(part)


@functools.cache
def texts(sheet: Sheet, *, solved: bool, alone: bool = True) -> Texts:
    """A sheet's ``answer.py``, as the solution or with its bodies removed; ``alone``: without this package."""
    needs: dict[str, set[str]] = {}
    imports, bodies, docs = {"import numpy as np"}, [], []
    for part in sheet.parts:
        module = module_of(part.page, part.code)
        source = "\n".join(module.lines)
        for word in (x for x in (*part.rename, *(f"{name}: " for name in part.drop)) if x not in source):
            raise ValueError(f"{sheet.file}: expected words of {part.page or 'the code'} to change, got {word!r}")
        written = {} if solved else {name: without(removed(module, name, part), part.drop) for name in part.functions}
        order, imported = module.closure([*part.keep, *part.functions], written)
        imports |= import_lines(module, imported, needs, alone)
        pieces = (written[x] if x in written else module.text(module.nodes[x]) for x in order)
        text = "\n\n\n".join(dict.fromkeys(x if solved else without(x, part.drop) for x in pieces))
        for old, new in part.rename.items():  # a name, or words; but "backward pass" is no name
            text = re.sub(rf"(?<![.\w]){old}\b(?! pass)", new, text) if old.isidentifier() else text.replace(old, new)
        title, doc = described(module, part)
        docs.append(f"{title}\n{'-' * len(title)}\n{doc}")
        bodies.append(f"# {'-' * 10} {title}\n\n\n{text}")
    answer = template("answer.txt").format(
        title=sheet.title + ".",
        doc="\n\n".join(docs),
        imports=ordered(imports),
        sheet=sheet.name,
        body="\n\n\n".join(bodies),
    )
    return Texts(answer, given(needs) if alone else {})


def module_of(page: str, code: str = "") -> Module:
    name = page if page.startswith("linattn_ref") else f"linattn_ref.{page}"
    return Module(code or inspect.getsource(importlib.import_module(name)))


def described(module: Module, part: Part) -> tuple[str, str]:
    """The title and the formulas of a page's docstring; in place of the derivation, the sheet's question."""
    doc = ast.get_docstring(module.tree, clean=False) or ""
    title, _, doc = doc.partition("\n")
    formulas = doc.split("\n:Time:")[0].split("\nThe gradient, by hand\n")[0].strip("\n").rstrip()
    formulas = re.sub(r"[A-Z][^.]*``linattn_ref[\w.]*``\. ", "", formulas)  # what sends readers to the package
    for old, new in part.rename.items():
        formulas = formulas if old.isidentifier() else formulas.replace(old, new)
    return title.partition(":")[0].rstrip("."), "\n\n".join(filter(None, [formulas, part.question.strip("\n")]))


def removed(module: Module, name: str, part: Part) -> str:
    """A function without its body: signature, docstring, the numbers of its equations."""
    node = module.nodes[name]
    first = node.body[0]
    has_doc = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    head = "\n".join(module.lines[node.lineno - 1 : first.lineno - 1])
    doc = module.text(first) if has_doc else ""
    found = (x for comment in re.findall(r"#.*", module.text(node)) for x in re.findall(EQUATIONS, comment))
    told = ", ".join(sorted(dict.fromkeys(found), key=lambda x: int(x[1:].partition(")")[0])))
    if name in part.docs:
        text = part.docs[name].strip()
        end = "\n    " if "\n" in text else ""
        doc = f'    """{text}{end}"""'
        told = ", ".join(re.findall(EQUATIONS, text.partition("\n")[0]))
    todo = f'raise NotImplementedError("{name} is yours to write{": " + told if told else ""}")'
    return "\n".join(filter(None, [head, doc, f"    {todo}"]))


def without(text: str, names: list[str]) -> str:
    """A definition without the options or fields of these names, each on a line of its own."""
    for name in names:  # where several are on one line
        text = re.sub(rf", (\*, )?{name}: [^=,\n]*= None", "", text)
    lines = [x for x in text.split("\n") if not any(re.match(rf"    {name}: ", x) for name in names)]
    text = "\n".join(re.sub(r"^(    \w+: .*\S)  # .*", r"\1", x) if names else x for x in lines)
    return text.replace("\n    *,\n)", "\n)")


def import_lines(module: Module, used: set[str], needs: dict[str, set[str]], alone: bool) -> set[str]:
    """The imports of these names, and what is to be given of this package."""
    lines = set()
    for each in used:
        name, _, attribute = each.partition(".")
        source, there = module.imports[name]
        alias = "" if name == (there or source) else f" as {name}"
        if not source.startswith("linattn_ref") or not alone:
            lines.add((f"from {source} import {there}" if there else f"import {source}") + alias)
        elif inspect.ismodule(getattr(importlib.import_module(source), there)):
            needs.setdefault(f"{source}.{there}", set()).update({attribute} - {""})
            lines.add(f"from given import {there}{alias}")
        else:
            needs.setdefault(source, set()).add(there)
            lines.add(f"from given.{source.rpartition('.')[2]} import {there}{alias}")
    return lines


def given(needs: dict[str, set[str]]) -> dict[str, str]:
    """The files of ``given``: of each module what is needed, and of what that needs in turn."""
    found: dict[str, tuple[set[str], str]] = {}
    while left := [name for name, wanted in needs.items() if name not in found or found[name][0] != wanted]:
        module, wanted = module_of(left[0]), {*needs[left[0]]}
        order, imported = module.closure(sorted(wanted), {})
        lines = import_lines(module, imported, needs, True)
        pieces = list(dict.fromkeys(module.text(module.nodes[name]) for name in order))
        doc = (ast.get_docstring(module.tree) or "").partition("\n")[0]
        body = "\n\n\n".join([f'"""{doc}"""\n\nfrom __future__ import annotations\n\n{ordered(lines)}', *pieces])
        found[left[0]] = wanted, body + "\n"
    files = {name.rpartition(".")[2]: text for name, (_, text) in sorted(found.items())}
    if len(files) < len(found):
        raise ValueError(f"two modules of one name: {', '.join(sorted(found))}")
    return files


def ordered(lines: set[str]) -> str:
    """Import lines, this package's after the others."""
    return "\n".join(sorted(lines, key=lambda x: ("given" in x or "linattn_ref" in x, x)))


def mistaken(sheet: Sheet, mistake: Mistake) -> str:
    """The solution's text with one line changed."""
    text = texts(sheet, solved=True, alone=False).answer
    lines, function = text.split("\n"), Module(text).nodes.get(mistake.function)
    body = range(function.lineno - 1, function.end_lineno) if function else ()
    at = next((i for i in body if mistake.line in lines[i]), None)
    if at is None:
        raise ValueError(f"{sheet.file}, {mistake.name}: no line of {mistake.function} has {mistake.line!r}")
    indent = lines[at].removesuffix(lines[at].lstrip())
    lines[at] = textwrap.indent(mistake.new.strip("\n"), indent)
    return "\n".join(lines)
