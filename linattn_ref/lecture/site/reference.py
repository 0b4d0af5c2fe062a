"""What one looks things up in: a page a module, from its docstrings, and the papers."""

import ast
import importlib
import inspect
import pkgutil
import re
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from linattn_ref.lecture.site.markdown import plain, save, toctree

__all__ = ["write_api", "write_papers"]

API = (
    *("attention", "attention.sparse", "attention.features", "attention.parts", "nn", "training", "models"),
    *("models.bert", "theory", "data"),
)
SEARCH = "https://scholar.google.com/scholar?q="
SINGLE = ("conform", "gradcheck", "homework")


def write_api(folder: Path) -> None:
    """A page a module, made from its docstrings."""
    parts = ["# API\n", "What is public: what ``__all__`` of each module lists.\n"]
    pages = []
    for package in API:
        module = importlib.import_module(f"linattn_ref.{package}")
        parts.append(f"## linattn_ref.{package}\n\n{_first_sentence(module)}\n")
        for name in _modules(module):
            parts.append(f"- [{name.rpartition('.')[2]}]({name}.rst): {_first_sentence(importlib.import_module(name))}")
            _write_module(folder, name)
            pages.append(name)
        parts.append("")
    for name in SINGLE:
        full = f"linattn_ref.{name}"
        _write_module(folder, full)
        pages.append(full)
        parts.append(f"- [{name}]({full}.rst): {_first_sentence(importlib.import_module(full))}")
    tree = toctree(f"{name.removeprefix('linattn_ref.')} <{name}>" for name in pages)
    save(folder / "index.md", "\n".join(parts) + "\n" + tree)


def _modules(package: ModuleType) -> list[str]:
    """Modules of a package that are public, without the packages in it."""
    found = (
        f"{package.__name__}.{module.name}" for module in pkgutil.iter_modules(package.__path__) if not module.ispkg
    )
    return [name for name in found if name.rpartition(".")[2] in package.__all__]


def _first_sentence(module: ModuleType) -> str:
    first = (inspect.getdoc(module) or "").split("\n\n")[0]
    return plain(" ".join(first.split()))


def _write_module(folder: Path, name: str) -> None:
    save(folder / f"{name}.rst", f"{name}\n{'=' * len(name)}\n\n.. automodule:: {name}\n")


def write_papers(root: Path, folder: Path, pages: Mapping[str, str]) -> None:
    """What the docstrings refer to: each paper once, with the files that do, and what in it they refer to.

    ``pages`` leads from a module to the page that has formulas beside its code.
    """
    cited: dict[str, list[str]] = {}
    for path in sorted((root / "linattn_ref").rglob("*.py")):
        docstring = inspect.cleandoc(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
        file = path.relative_to(root)
        module = ".".join(file.with_suffix("").parts)
        shown = f"[`{file}`]({pages[module]}.md)" if module in pages else f"`{file}`"
        for entry in _references(docstring):
            paper, end, where = entry.partition('",')
            paper += '"' if end else ""
            cited.setdefault(plain(paper.rstrip(".")), []).append(
                shown + (f": {plain(where.strip(' .'))}" if end else "")
            )
    lines = ["# Papers\n", "What the files refer to, and where.\n"]
    lines += [
        f"- {_searched(paper)}\n" + "".join(f"  - {place}\n" for place in cited[paper]) for paper in sorted(cited)
    ]
    save(folder / "papers.md", "\n".join(lines))


def _searched(paper: str) -> str:
    """The paper, with its title as a link that searches for it."""

    def link(title: re.Match[str]) -> str:
        return f'"[{title[1]}]({SEARCH}{urllib.parse.quote_plus(title[1])})"'

    return re.sub(r'"([^"]{12,})"', link, paper, count=1)


def _references(docstring: str) -> list[str]:
    _, found, below = docstring.partition("\nReferences\n----------\n")
    if not found:
        return []
    block = re.split(r"\n\n", below)[0]
    entries = re.split(r"\n(?=[A-ZÖŁ][^\n]*\(\d{4}\)|\.\. \[)", block)
    return [re.sub(r"^\.\. \[\w+\] ", "", " ".join(entry.split())) for entry in entries]
