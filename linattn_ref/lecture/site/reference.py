"""What one looks things up in: a page per module, from its docstrings, and the papers."""

import ast
import collections
import importlib
import inspect
import pkgutil
import re
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from linattn_ref.lecture.site import prose
from linattn_ref.lecture.site.markdown import plain, save, toctree

__all__ = ["write_api", "write_papers"]

API = (
    *("attention", "attention.sparse", "attention.features", "attention.parts", "nn", "training", "models"),
    *("models.bert", "theory", "data"),
)
SEARCH = "https://scholar.google.com/scholar?q="
SINGLE = ("conform", "gradcheck", "homework")


def write_api(folder: Path) -> None:
    """A page per module, made from its docstrings."""
    parts = ["# API\n", "What is public: what ``__all__`` of each module lists.\n"]
    pages = []

    def add(name: str) -> None:
        save(folder / f"{name}.rst", f"{name}\n{'=' * len(name)}\n\n.. automodule:: {name}\n")
        parts.append(f"- [{name.rpartition('.')[2]}]({name}.rst): {_first_sentence(importlib.import_module(name))}")
        pages.append(name)

    for package in API:
        module = importlib.import_module(f"linattn_ref.{package}")
        parts.append(f"## linattn_ref.{package}\n\n{_first_sentence(module)}\n")
        for each in pkgutil.iter_modules(module.__path__):
            if not each.ispkg and each.name in module.__all__:
                add(f"{module.__name__}.{each.name}")
        parts.append("")
    for name in SINGLE:
        add(f"linattn_ref.{name}")
    tree = toctree(f"{name.removeprefix('linattn_ref.')} <{name}>" for name in pages)
    save(folder / "index.md", "\n".join(parts) + "\n" + tree)


def _first_sentence(module: ModuleType) -> str:
    return plain(" ".join((inspect.getdoc(module) or "").partition("\n\n")[0].split()))


def write_papers(root: Path, folder: Path, pages: Mapping[str, str]) -> None:
    """What the docstrings refer to: each paper once, with the files that do, and what in it they refer to.

    ``pages`` leads from a module to the page that has formulas beside its code.
    """
    cited: dict[str, list[str]] = collections.defaultdict(list)
    for path in sorted((root / "linattn_ref").rglob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        file = path.relative_to(root)
        module = ".".join(file.with_suffix("").parts)
        shown = f"[`{file}`]({pages[module]}.md)" if module in pages else f"`{file}`"
        for entry in _references(docstring):
            ((paper, where),) = re.findall(r'^([^"]*(?:"[^"]*")?)(.*)$', entry)  # up to the title, and behind it
            place = plain(where.strip(" .,:;"))
            colon = ":" if place and not place.startswith("(") else ""
            cited[plain(paper.rstrip("."))].append(f"  - {shown}{colon} {place}".rstrip() + "\n")
    lines = ["# Papers\n", "What the files refer to, and where.\n"]
    lines += [f"- {_searched(paper)}\n{''.join(places)}" for paper, places in sorted(cited.items())]
    save(folder / "papers.md", "\n".join(lines))


def _searched(paper: str) -> str:
    """The paper, with its title as a link that searches for it."""

    def link(title: re.Match[str]) -> str:
        return f'"[{title[1]}]({SEARCH}{urllib.parse.quote_plus(title[1])})"'

    return re.sub(r'"([^"]{12,})"', link, paper, count=1)


def _references(docstring: str) -> list[str]:
    block = docstring.partition("\nReferences\n----------\n")[2].partition("\n\n")[0]
    return [re.sub(r"^\.\. \[\w+\] ", "", " ".join(entry.split())) for entry in prose.entries(block) if entry]
