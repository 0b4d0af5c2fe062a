"""A sheet of homework: one text file, TOML, that says what is asked, checked, hinted at and known to go wrong."""

from __future__ import annotations

import functools
import math
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from linattn_ref.conform.checks import CHECKS
from linattn_ref.conform.questions import OPS

__all__ = ["FOLDER", "Item", "Mistake", "Part", "Question", "Sheet", "names", "read", "template"]

FOLDER = Path(__file__).parent / "sheets"


class Said:
    """What a file says, of the types that are written here."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            if not fits(getattr(self, name), kind):
                wanted = type(self).__annotations__[name]
                raise TypeError(f"{name}: expected {wanted}, got {getattr(self, name)!r}")


def fits(x: Any, kind: Any) -> bool:
    """Whether a value is of this type: a class, a list or a dict of one; a whole number is a float."""
    of, inner = get_origin(kind) or kind, get_args(kind)[-1:]
    if isinstance(x, bool) or not isinstance(x, (int, float) if of is float else of):
        return False
    inside: Any = x.values() if isinstance(x, dict) else x
    return not inner or all(fits(y, inner[0]) for y in inside)


@dataclass(frozen=True, kw_only=True)
class Part(Said):
    """Functions that a student writes, from one page or from the sheet itself."""

    functions: list[str]
    page: str = ""  # "attention.softmax"
    code: str = ""  # or their solution, where no page has them
    keep: list[str] = field(default_factory=list)  # what the student gets as it is: classes, helpers
    drop: list[str] = field(default_factory=list)  # options and fields that the student does not see
    rename: dict[str, str] = field(default_factory=dict)
    docs: dict[str, str] = field(default_factory=dict)  # other docstrings
    question: str = ""  # what stands in place of the page's derivation


@dataclass(frozen=True, kw_only=True, eq=False)
class Item(Said):
    """What gets points, all or none."""

    name: str
    title: str
    points: float
    functions: list[str]  # that are asked
    check: str  # Python: yields what is compared
    hint: str
    trials: int = 3  # each with numbers and sizes of its own
    peak: float = 0.0  # KiB that a call may hold at once, besides its arguments; 0: no limit but the sheet's
    own: str = ""  # Python for the handout alone: yields pairs, a gradient and finite differences
    judge: str = ""  # an operation of `linattn-ref conform`
    checks: list[str] = field(default_factory=list)  # and its checks
    behind: str = ""  # where the judge asks for gradients: the function whose backward pass it is, the solution's
    hide: list[str] = field(default_factory=list)  # options that the judge is not to ask for: another item does


@dataclass(frozen=True, kw_only=True, eq=False)
class Mistake(Said):
    """What people get wrong: one line of the solution, otherwise."""

    item: str
    name: str
    function: str
    line: str  # the line that contains this
    new: str  # stands there instead
    says: str = ""  # to the student; where there is nothing, the judge has to know it


@dataclass(frozen=True, kw_only=True)
class Question(Said):
    """One of theory, for paper."""

    question: str
    answer: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Sheet(Said):
    """All of it."""

    file: Path
    title: str
    hours: str
    chapters: list[str]
    goals: list[str]
    reading: str
    parts: list[Part]
    items: list[Item]
    mistakes: list[Mistake]
    theory: list[Question]
    discussion: list[str]
    sizes: dict[str, int]  # letters, in the handout; the grader's are larger
    notes: str = ""  # for the grader
    data: str = ""  # a file of NumPy's beside this one: `data` in checks, and given to the student
    arrays: list[str] = field(default_factory=list)  # "torch", "jax": whose functions are accepted too
    seconds: float = 5.0  # that an item may take
    memory: int = 2048  # MiB

    @property
    def name(self) -> str:
        """``softmax``, of a file ``01_softmax.toml``."""
        return self.file.stem.partition("_")[2] or self.file.stem

    @property
    def functions(self) -> list[str]:
        """What a student writes."""
        return [part.rename.get(name, name) for part in self.parts for name in part.functions]

    @property
    def points(self) -> float:
        return sum(item.points for item in self.items)


def template(name: str) -> str:
    """What texts are made of."""
    return (FOLDER.parent / "templates" / name).read_text(encoding="utf-8")


def names() -> list[str]:
    """The sheets, in order: ``softmax``, ..."""
    return [path.stem.partition("_")[2] for path in sorted(FOLDER.glob("[0-9][0-9]_*.toml"))]


@functools.cache
def read(name: str) -> Sheet:
    """A sheet by name, or the file of one.

    Raises
    ------
    ValueError
        Where there is none; naming the file, and what it lacks, or has that is not known or of another type.
    """
    file = next(FOLDER.glob(f"[0-9][0-9]_{name}.toml"), None) if name in names() else Path(name)
    if file is None or file.suffix != ".toml" or not file.is_file():
        raise ValueError(f"sheet: expected one of {', '.join(names())}, or a file NN_name.toml, got {name!r}")
    try:
        said: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        lists: dict[str, Any] = {
            key: [made(cls, x) for x in said.pop(key)] for key, cls in KINDS.items() if key in said
        }
        sheet = Sheet(file=file, **lists, **said)
    except (TypeError, ValueError) as error:  # no TOML, not UTF-8, or not what a sheet says
        raise ValueError(f"{file}: {str(error).replace('.__init__()', '')}") from None
    for title, complaint in complaints(sheet):
        raise ValueError(f"{file}, {title}: {complaint}")
    return sheet


def made(cls: Any, said: dict[str, Any]) -> Any:
    """A part, an item, ..., and its name in an error."""
    try:
        return cls(**said)
    except TypeError as error:
        name = said.get("name") if isinstance(said, dict) else None
        raise TypeError(f"{name or cls.__name__}: {error}") from None


def complaints(sheet: Sheet) -> Iterator[tuple[str, str]]:
    """Find unknown or repeated names and numbers out of range, before a student is graded by them."""
    for item in sheet.items:
        of_judge = [name for name, check in CHECKS.items() if item.judge in check.ops]
        for word, values, known in (
            ("functions", item.functions or [""], sheet.functions),
            ("behind", [item.behind], ["", *sheet.functions]),
            ("judge", [item.judge], ["", *OPS]),
            ("checks", item.checks, of_judge),
        ):
            for unknown in (x for x in values if x not in known):
                yield f"item {item.name}", f"{word}: expected one of {', '.join(filter(None, known))}, got {unknown!r}"
        if item.trials < 1 or not 0 < item.points < math.inf:
            words = "expected trials of at least 1 and finite points above 0"
            yield f"item {item.name}", f"{words}, got {item.trials} and {item.points}"
        if not 0 <= item.peak < math.inf:
            yield f"item {item.name}", f"peak: expected a finite number of at least 0, got {item.peak}"
    for word, value in (("seconds", sheet.seconds), ("memory", sheet.memory)):
        if not 0 < value < math.inf:
            yield word, f"expected a finite number above 0, got {value}"
    for word, kinds in (("item", sheet.items), ("mistake", sheet.mistakes)):
        for name, count in Counter(x.name for x in kinds).items():
            if count > 1:
                yield f"{word} {name}", f"expected one of this name, got {count}"
    for mistake in (x for x in sheet.mistakes if x.item not in {item.name for item in sheet.items}):
        yield f"mistake {mistake.name}", f"there is no item {mistake.item!r}"


KINDS: dict[str, Any] = {"parts": Part, "items": Item, "mistakes": Mistake, "theory": Question}
