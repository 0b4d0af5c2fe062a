"""What the sliders of a chapter need: the few statements of it that lead to a call of ``chapter.explore``.

A chapter takes up to a minute to run, and most of it is not what the sliders show. From the call backwards, a statement
is kept if it binds a name that is needed; then the names it uses are needed too. Asserts, prints and figures fall away.
Random numbers come in an order: what draws from a generator that is needed is kept as well.
"""

import ast
import re
import symtable
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["Call", "calls", "source"]

Call = tuple[tuple[Any, ...], dict[str, Any]]  # what `chapter.explore` is given


def calls(chapter: Path) -> list[Call]:
    """The arguments of each call of ``chapter.explore`` at the top of a chapter's file, in order."""
    found: list[Call] = []
    text = re.sub(r"^chapter\.explore\(", "_collect(", source(chapter), flags=re.MULTILINE)
    names = {"__name__": chapter.stem, "_collect": lambda *given, **options: found.append((given, options))}
    exec(compile(text, f"<sliders of {chapter.name}>", "exec"), names)
    return found


def source(chapter: Path) -> str:
    """The statements that :func:`calls` runs; comments and blanks do not count."""
    statements = ast.parse(chapter.read_text(encoding="utf-8"), str(chapter)).body
    explored = [i for i, one in enumerate(statements) if ast.unparse(one).startswith("chapter.explore(")]
    kept = sorted({i for at in explored for i in leading_to(at, statements)})
    return "\n".join(ast.unparse(statements[i]) for i in kept)


def leading_to(at: int, statements: list[ast.stmt]) -> set[int]:
    """The statements that the one at ``at`` depends on, and itself."""
    kept, seen, asked = {at}, set(), [(name, at) for name in loaded(statements[at])]
    while asked:
        name, when = asked.pop()
        if (name, when) in seen:
            continue
        seen.add((name, when))
        for i in binding(name, when, statements):
            kept.add(i)
            # What a function reads is looked up when it runs, which is no later than now.
            asked += [(other, when if _runs_later(statements[i]) else i) for other in loaded(statements[i])]
    return kept


def binding(name: str, when: int, statements: list[ast.stmt]) -> list[int]:
    """The statement before ``when`` that binds ``name`` last, and those after it that change what it is bound to."""
    changes: list[int] = []
    for i in reversed(range(when)):
        one = statements[i]
        if isinstance(one, ast.Assert):
            continue
        if name in bound(one):
            changes.append(i)
            if not isinstance(one, ast.AugAssign | ast.For | ast.With) and name not in changed(one):
                draws = "default_rng" in ast.unparse(one)
                return [j for j in range(i, when) if j in changes or (draws and _uses(name, statements[j]))]
    return changes


def _uses(name: str, one: ast.stmt) -> bool:
    return not isinstance(one, ast.FunctionDef | ast.Assert) and name in loaded(one)


def _runs_later(one: ast.stmt) -> bool:
    return any(isinstance(x, ast.FunctionDef | ast.Lambda) for x in ast.walk(one))


@cache
def loaded(one: ast.AST) -> set[str]:
    """The names of the chapter that a statement reads, within its functions too."""
    tables = [_table(one)]
    added_to = (x.target for x in ast.walk(one) if isinstance(x, ast.AugAssign))
    names = {x.id for x in added_to if isinstance(x, ast.Name)}
    while tables:
        table = tables.pop()
        inside = table.get_type() != "module"  # of a function, whose own names do not count
        names |= {x.get_name() for x in table.get_symbols() if x.is_referenced() and (x.is_global() or not inside)}
        tables += table.get_children()
    return names


@cache
def bound(one: ast.AST) -> set[str]:
    """The names that it binds, or whose contents it changes: ``x = ``, ``x[i] = ``, ``import x``, ``def x``."""
    binds = {x.get_name() for x in _table(one).get_symbols() if x.is_assigned() or x.is_imported() or x.is_namespace()}
    return binds | changed(one)


def _table(one: ast.AST) -> symtable.SymbolTable:
    return symtable.symtable(ast.unparse(one), "chapter", "exec")


@cache
def changed(one: ast.AST) -> set[str]:
    """The names whose contents it changes."""
    stores = (x for x in ast.walk(one) if isinstance(x, ast.Subscript | ast.Attribute) and isinstance(x.ctx, ast.Store))
    return {x.id for store in stores for x in ast.walk(store.value) if isinstance(x, ast.Name)}
