"""Tables of README.md, MECHANISMS.md and the course's page, from the code, the chapters and the benches' records.

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
from collections.abc import Callable, Sequence
from itertools import dropwhile, takewhile
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import linattn_ref.attention
from linattn_ref.atomic import write_all
from linattn_ref.attention import softmax
from linattn_ref.experiments.publishing import course, headlines, markdown
from linattn_ref.homework import sheet

__all__ = ["PAGES", "check_readme", "mechanisms", "update"]

# The pages that have tables: what makes each, from the folder that README.md is in.
PAGES: dict[str, dict[str, Callable[[Path], str]]] = {
    "README.md": {
        "gradient": lambda root: gradient(),
        "routes": lambda root: routes_table(root / "notebooks"),
        "headlines": lambda root: headlines.table(root / "figures"),
    },
    "MECHANISMS.md": {"mechanisms": lambda root: mechanisms_table(mechanisms())},
    "notebooks/README.md": {
        "evening": lambda root: evening_table(root / "notebooks"),
        "chapters": lambda root: chapters_table(root / "notebooks"),
        "weeks": lambda root: weeks_table(root / "notebooks"),
    },
}

FIELDS = ("Gives", "Exact", "Time", "Memory", "Causal")  # in the table's order
# Arguments that every mechanism has, or that say how to compute and not what.
COMMON = {"q", "k", "v", "qk", "causal", "key_mask", "query_mask", "row_mask", "scale", "kernels", "state", "out"}
COMMON |= {"groups", "offsets"}  # heads that share keys, and packed sequences
# Other forms of a mechanism, each a page of its own: they have no row of their own.
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
    if missing := ", ".join(f":{field}:" for field in FIELDS if field not in fields):
        where = "linattn_ref/experiments/publishing/tables.py"
        raise ValueError(f"{module.__name__}: its docstring needs {missing}; see {where}")
    own = tuple(name for name in inspect.signature(module.forward).parameters if name not in COMMON)
    return Mechanism(module.__name__, title, source or "–", fields, hasattr(module, "step"), own)


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
    lines = (line.removeprefix("#").strip() for line in path.read_text(encoding="utf-8").splitlines())
    heading = next((line for line in lines if line.startswith("# ")), None)
    if heading is None:
        raise ValueError(f"{path}: expected a line '# # Title', the chapter's heading")
    below = " ".join(takewhile(bool, dropwhile(lambda line: not line, lines)))  # a paragraph
    return Chapter(path.stem, heading.removeprefix("# "), below)


def mechanisms_table(rows: Sequence[Mechanism]) -> str:
    """As Markdown."""
    header = ("picture", "mechanism", "gives", "exact", "time", "memory kept", "causal", "recurrent form")
    lines = []
    for row in rows:
        drawn = f"figures/schematic_{row.name}.svg"
        picture = f'<a href="{drawn}"><img src="{drawn}" width="280" alt="{row.title}, drawn"></a>'
        link = f"[{row.title}]({row.file})" + f"<br>{row.source}" * (row.source != "–")
        needs = ", ".join(f"`{name}`" for name in row.parameters) or "–"
        said = *(row.fields[field] for field in FIELDS), "yes" if row.recurrent else "no"
        lines.append([picture, link, *said, needs])
    return "\n".join(markdown.table((*header, "beyond q, k, v"), lines, "l")).replace("``", "`")


def chapters_table(folder: Path) -> str:
    """As Markdown, for a page in the chapters' ``folder``."""
    lines = []
    for row in chapters(folder):
        path = folder / f"{row.name}.py"
        sittings = [f"{minutes:.0f}" for minutes in course.sittings(path)]
        may_skip = course.MAY_SKIP.get(row.name[:2], ())
        skip = f"{'; '.join(may_skip)} ({course.chosen(path, may_skip):.0f} min)" if may_skip else "–"
        lines.append((f"[{row.title}]({row.name}.ipynb)", row.question, " + ".join(sittings), course.needs(path), skip))
    return "\n".join(markdown.table(("chapter", "question", "minutes", "you need", "may be skipped"), lines, "l"))


def evening_table(folder: Path) -> str:
    """The stops of the evening, as Markdown, for a page in the chapters' ``folder``."""
    stops = course.evening(folder)
    lines = [(_link(path), "; ".join(titles), why, f"{minutes:.0f}") for path, titles, minutes, why in stops]
    lines.append(("", "", "together", f"{sum(minutes for *_, minutes, _ in stops):.0f}"))
    return "\n".join(markdown.table(("chapter", "read the opening and", "for", "minutes"), lines, "lllr"))


def weeks_table(folder: Path) -> str:
    """A week for each sheet of homework, as Markdown, for a page in the chapters' ``folder``."""
    lines = []
    for week, name in enumerate(sheet.names(), 1):
        asked = sheet.read(name)
        paths = [next(folder.glob(f"{number}_*.py")) for number in asked.chapters]
        links = ", ".join(map(_link, paths))
        decks = sum(_minutes_of_deck(folder / "slides" / f"{path.stem}.md") for path in paths)
        minutes = f"{sum(sum(course.sittings(path)) for path in paths):.0f}"
        lines.append((str(week), links, minutes, str(decks), f"`{name}`: {asked.title}", asked.hours))
    header = ("week", "chapters", "minutes to read", "minutes of decks", "sheet", "hours of work")
    return "\n".join(markdown.table(header, lines, "rlrrll"))


def routes_table(folder: Path) -> str:
    """The three routes, as Markdown, for README.md; ``folder`` has the chapters."""
    stops = course.evening(folder)
    minutes = [sum(course.sittings(folder / f"{row.name}.py")) for row in chapters(folder)]
    *numbers, last = (path.name[:2].lstrip("0") for path, *_ in stops)
    talk = _minutes_of_deck(folder / "slides" / f"{course.LECTURE}.md")
    lines = [
        ("One evening", f"parts of chapters {', '.join(numbers)} and {last}", _hours(sum(s[2] for s in stops))),
        ("One lecture", "`linattn-ref slides short`, one deck with its spoken text", f"{talk} minutes"),
        ("The whole", f"{len(minutes)} chapters, none of them longer than two sittings", _hours(sum(minutes))),
    ]
    return "\n".join(markdown.table(("route", "what", "time"), lines, "l"))


def gradient() -> str:
    """The lines of `softmax.backward` that compute, as they stand in its file."""
    lines = inspect.getsource(softmax.backward).splitlines()
    (after,) = (i for i, line in enumerate(lines) if line.strip().startswith('"""'))
    code = inspect.cleandoc("\n".join(line for line in lines[after + 1 :] if "return " not in line))
    return f"```py\n{code}\n```"


def _link(path: Path) -> str:
    """To a chapter by its number."""
    return f"[{path.stem[:2].lstrip('0')}]({path.stem}.ipynb)"


def _hours(minutes: float) -> str:
    """In quarters of an hour, or in whole hours where there are many."""
    if minutes > 5 * 60:
        return f"{minutes / 60:.0f} hours"
    whole, rest = divmod(round(minutes / 15) * 15, 60)
    return f"{whole} h {rest:02}"


def _minutes_of_deck(path: Path) -> int:
    """Of all its slides."""
    from linattn_ref.lecture.slides import deck  # reads Markdown alone

    return sum(slide.minutes for slide in deck.read(path).slides)


def updated(page: str, root: Path, name: str = "README.md") -> str:
    """The text of one of `PAGES` of ``root`` with its tables made anew.

    Each stands between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``.

    Raises
    ------
    ValueError
        A table's marks are not there, once each and in this order.
    """
    for table, make in PAGES[name].items():
        begin, end = f"<!-- {table}:begin -->", f"<!-- {table}:end -->"
        before, found_begin, rest = page.partition(begin)
        _, found_end, after = rest.partition(end)
        if not (found_begin and found_end) or begin in after or end in before + after:
            raise ValueError(f"{name}: expected {begin} and then {end}, once each")
        page = f"{before}{begin}\n{make(root)}\n{end}{after}"
    return page


def update(readme: Path) -> None:
    """Make the tables of README.md, and of the other `PAGES` of its folder, anew.

    Raises
    ------
    FileNotFoundError
        There is no such file: to be run where README.md is.
    """
    check_readme(readme)
    root = readme.parent
    write_all({root / name: updated((root / name).read_text(encoding="utf-8"), root, name) for name in PAGES})


def check_readme(readme: Path) -> None:
    """There is such a file."""
    if not readme.is_file():
        raise FileNotFoundError(f"no README.md in {readme.resolve().parent}: run this in the repository's root")
