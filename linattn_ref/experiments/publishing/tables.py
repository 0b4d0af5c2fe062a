"""The tables of README.md: mechanisms and chapters, made from the code, and some ratios, from the benches' records.

A mechanism is a module of `linattn_ref.attention` with ``forward``, ``backward`` and ``Gradients``. Adding one adds a
row: its docstring begins with its name, and its source if it has one, ``Linformer (Wang et al. 2020): ...``, and has
the fields

    :Time: ``O(N R max(D, M))``
    :Memory: ``O(N + R)``
    :Causal: no
    :Exact: no
    :Gives: an approximation of softmax attention

The rest is seen from the code: a recurrent form (``step``), and the arguments beyond queries, keys and values.
"""

import importlib
import inspect
import re
from collections.abc import Sequence
from itertools import dropwhile, takewhile
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import linattn_ref.attention
from linattn_ref.atomic import write_all
from linattn_ref.experiments.publishing import headlines, markdown

__all__ = ["check_readme", "mechanisms", "update"]

FIELDS = ("Time", "Memory", "Causal", "Exact", "Gives")
# Arguments that every mechanism has, or that say how to compute and not what.
COMMON = {"q", "k", "v", "qk", "causal", "key_mask", "row_mask", "scale", "kernels", "state", "out"}
COMMON |= {"groups", "offsets"}  # packed sequences, and heads that share keys


# Other forms of a mechanism, each a page beside it: they have no row of their own.
FORMS = {"chunked_delta", "chunked_linear", "delta_rule", "exponential", "online_softmax"}


class Mechanism(NamedTuple):
    """A row of the table of mechanisms."""

    module: str  # its name
    title: str
    source: str
    fields: dict[str, str]  # FIELDS
    recurrent: bool
    parameters: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.module.rpartition(".")[2]

    @property
    def file(self) -> str:
        return f"{self.module.replace('.', '/')}.py"


class Chapter(NamedTuple):
    """A row of the table of chapters."""

    name: str  # of the file, without extension
    title: str
    question: str


def mechanisms() -> list[Mechanism]:
    """Every mechanism of `linattn_ref.attention`, softmax first; what they are made of has pairs too, and no row."""
    names = sorted(set(linattn_ref.attention.__all__) - FORMS, key=lambda name: (name != "softmax", name))
    modules = (importlib.import_module(f"linattn_ref.attention.{name}") for name in names)
    return [mechanism(module) for module in modules if {"forward", "backward", "Gradients"} <= set(vars(module))]


def mechanism(module: ModuleType) -> Mechanism:
    """The row of one module.

    Raises
    ------
    ValueError
        Its docstring lacks one of the fields; which.
    """
    doc = inspect.getdoc(module) or ""
    title, source = re.findall(r"^([^(:,.]+?)(?: \(([^)]+)\))?[:,.]", doc)[0]
    fields = dict(re.findall(r"^:(\w+): (.+)$", doc, re.MULTILINE))
    missing = [f":{field}:" for field in FIELDS if field not in fields]
    if missing:
        lacks = ", ".join(missing)
        raise ValueError(
            f"{module.__name__}: its docstring needs {lacks}; see linattn_ref/experiments/publishing/tables.py"
        )
    parameters = tuple(inspect.signature(module.forward).parameters)
    own = tuple(parameter for parameter in parameters if parameter not in COMMON)
    chosen = {field: fields[field] for field in FIELDS}
    return Mechanism(module.__name__, title, source or "–", chosen, hasattr(module, "step"), own)


def chapters(folder: Path) -> list[Chapter]:
    """The chapters in ``folder``: of each ``NN_name.py``, its first heading and the paragraph below it."""
    return [chapter(path) for path in sorted(folder.glob("[0-9][0-9]_*.py"))]


def chapter(path: Path) -> Chapter:
    """The row of one chapter.

    Raises
    ------
    ValueError
        It has no heading in a Markdown cell.
    """
    lines = [line.removeprefix("#").strip() for line in path.read_text(encoding="utf-8").splitlines()]
    heading = next((i for i, line in enumerate(lines) if line.startswith("# ")), None)
    if heading is None:
        raise ValueError(f"{path}: expected a line '# # Title', the chapter's heading")
    below = " ".join(takewhile(bool, dropwhile(lambda line: not line, lines[heading + 1 :])))  # a paragraph
    return Chapter(path.stem, lines[heading].removeprefix("# "), below)


def mechanisms_table(rows: Sequence[Mechanism]) -> str:
    """As Markdown."""
    told = ("gives", "exact", "time", "memory kept", "causal")
    header = ("picture", "mechanism", *told, "recurrent form", "beyond q, k, v")
    lines = []
    for row in rows:
        drawn = f"figures/schematic_{row.name}.svg"
        picture = f'<a href="{drawn}"><img src="{drawn}" width="280" alt="{row.title}, drawn"></a>'
        link = f"[{row.title}]({row.file})" + f"<br>{row.source}" * (row.source != "–")
        needs = ", ".join(f"`{name}`" for name in row.parameters) or "–"
        said = [row.fields[field] for field in ("Gives", "Exact", "Time", "Memory", "Causal")]
        lines.append([picture, link, *said, "yes" if row.recurrent else "no", needs])
    return "\n".join(markdown.table(header, lines, "l")).replace("``", "`")


def chapters_table(rows: Sequence[Chapter]) -> str:
    """As Markdown."""
    lines = [
        (f"[{row.title}](notebooks/{row.name}.ipynb)", row.question, f"[.py](notebooks/{row.name}.py)") for row in rows
    ]
    return "\n".join(markdown.table(("chapter", "question", "source"), lines, "l"))


def updated(readme: str, root: Path) -> str:
    """The text of ``root``'s README.md with its tables made anew.

    Each stands between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``.

    Raises
    ------
    ValueError
        A table's marks are not there, once each and in this order.
    """
    tables = {"mechanisms": mechanisms_table(mechanisms()), "chapters": chapters_table(chapters(root / "notebooks"))}
    tables["headlines"] = headlines.table(root / "figures")
    for name, table in tables.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        before, found_begin, rest = readme.partition(begin)
        _, found_end, after = rest.partition(end)
        if not (found_begin and found_end) or begin in after or end in before + after:
            raise ValueError(f"README.md: expected {begin} and then {end}, once each")
        readme = f"{before}{begin}\n{table}\n{end}{after}"
    return readme


def update(readme: Path) -> None:
    """Make the tables of a README.md anew; chapters and benches are those in the folders beside it.

    Raises
    ------
    FileNotFoundError
        There is no such file: to be run where README.md is.
    """
    check_readme(readme)
    text = updated(readme.read_text(encoding="utf-8"), readme.parent)
    write_all({readme: lambda path: path.write_text(text, encoding="utf-8")})


def check_readme(readme: Path) -> None:
    """There is such a file."""
    if not readme.is_file():
        raise FileNotFoundError(f"no README.md in {readme.resolve().parent}: run this in the repository's root")
