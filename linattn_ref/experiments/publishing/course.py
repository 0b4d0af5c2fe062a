"""How long the chapters take to read, what they need, and routes through them.

Prose is read at 200 words per minute and code at 15 lines per minute, blank lines not counted. A section is what
follows a heading ``##``, its subsections included; what comes before the first one is the opening. A chapter that takes
more than 45 minutes has a marked break, a paragraph that begins with ``**A break.**``, and the next section begins
another sitting.

>>> of_text("# %% [markdown]\\n# # 1. A title\\n# " + 396 * "word " + "\\n\\n# %%\\nx = 1\\n" + 29 * "x += 1\\n")
[Section(title='1. A title', minutes=4.0, sitting=0)]
"""

import re
from pathlib import Path
from typing import NamedTuple

__all__ = ["EVENING", "LECTURE", "MAY_SKIP", "SITTING", "Section", "needs", "of_text", "sections", "sittings"]

WORDS, LINES = 200, 15  # per minute
SITTING = 45  # minutes
BREAK = "**A break.**"
CELL = re.compile(r"^# %%(.*)$", re.MULTILINE)
HEADING = re.compile(r"^(?=##? .)", re.MULTILINE)
LECTURE = "00_short"  # the deck of the short route

# What can be left out on a first reading, by chapter: titles of sections.
MAY_SKIP = {
    "02": ("How exact are the singular values?", "The gradient of singular values"),
    "03": ("Johnson-Lindenstrauss: a random projection keeps lengths",),
    "04": ("Theorem 2: what it states, what its proof does", "Without a learned matrix: pooling and convolution"),
    "06": ("The quadratic kernel: about $D^2 / 2$ features, exact",),
    "07": ("What automatic differentiation keeps", "Traps with exponential features"),
    "08": ("Many heads: $2H$ hidden states", "Linformer and linear attention together?"),
    "09": ("Any kernel of $x - y$: Bochner's theorem", "Orthogonal directions"),
    "11": ("The gradient, by hand",),
    "12": ("BigBird: blocks, random ones among them",),
    "14": ("What it costs",),
    "15": ("One gradient for two families",),
    "16": ("What only a compiler can tell", "Which part waits for what: the roofline"),
    "18": ("RAdam: why it warms up by itself",),
    "19": ("A chunk: a triangular system", "States do not add"),
    "21": ("Seconds per image",),
    "23": ("Where a small network begins",),
}
# The evening: a chapter, the sections that are read after its opening, and what one takes from them.
HAND = "The smallest example, by hand"
EVENING = {
    "01": (
        f"{HAND}; The formula; The gradient, by hand; What it costs; The same function without the matrix; "
        "What to remember",
        "what everybody computes, its gradient, and why the matrix need not be kept",
    ),
    "05": (
        f"{HAND}; A weighted average, with any weights; The bracket; The gradient, by hand; What to remember",
        "other weights than the exponential, and the bracket that removes the square",
    ),
    "07": (
        f"{HAND}; A running sum; The gradient, by hand; Chunks; What to remember",
        "causal attention as a running sum, and its gradient as another",
    ),
    "08": (
        f"{HAND}; One head; Infinitely many features: softmax is such a network too; "
        "Writing text: constant state against growing cache; What to remember",
        "a transformer as a recurrent network, and what its state can hold",
    ),
    "15": (
        "Three families; When to use which; What to remember",
        "the other mechanisms at a glance, and when to use which",
    ),
}


class Section(NamedTuple):
    """A part of a chapter."""

    title: str  # of the opening, the chapter's
    minutes: float
    sitting: int  # from 0


def sections(path: Path) -> list[Section]:
    """The sections of one chapter's source."""
    return of_text(path.read_text(encoding="utf-8"))


def of_text(text: str) -> list[Section]:
    """The sections of a chapter from its text, a jupytext source of percent cells."""
    found: list[Section] = []
    sitting, after_break = 0, False
    parts = CELL.split(text)
    for head, body in zip(parts[1::2], parts[2::2], strict=True):
        lines = [line for line in body.splitlines() if line.strip()]
        if "[markdown]" in head:
            prose = "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines)
            pieces = [(piece, len(piece.split()) / WORDS) for piece in HEADING.split(prose)]
        else:
            pieces = [("", len(lines) / LINES)]
        for piece, minutes in pieces:
            if HEADING.match(piece):
                sitting += after_break
                after_break = False
                found.append(Section(piece.partition("\n")[0].lstrip("#")[1:], minutes, sitting))
            elif found:
                found[-1] = found[-1]._replace(minutes=found[-1].minutes + minutes)
            after_break |= BREAK in piece
    return found


def sittings(path: Path) -> list[float]:
    """The minutes of each sitting of a chapter."""
    found = sections(path)
    last = max((section.sitting for section in found), default=0)
    return [sum(section.minutes for section in found if section.sitting == i) for i in range(last + 1)]


def needs(path: Path) -> str:
    """What a chapter says that its reader needs: the sentence that begins with "You need"."""
    text = " ".join(line.removeprefix("#").strip() for line in path.read_text(encoding="utf-8").splitlines())
    found = re.search(r"You need (.+?)[.:](?: |$)", text)
    if found is None:
        raise ValueError(f"{path.name}: expected a sentence that begins with 'You need'")
    return found[1]


def chosen(path: Path, titles: tuple[str, ...]) -> float:
    """The minutes of some sections of a chapter.

    Raises
    ------
    ValueError
        It has no such section.
    """
    minutes = {section.title: section.minutes for section in sections(path)}
    for title in titles:
        if title not in minutes:
            raise ValueError(f"{path.name}: no section {title!r}; there are {', '.join(minutes)}")
    return sum(minutes[title] for title in titles)


def evening(folder: Path) -> list[tuple[Path, tuple[str, ...], float, str]]:
    """The stops of the evening: a chapter, the sections after its opening, the minutes of all of them, and why."""
    stops: list[tuple[Path, tuple[str, ...], float, str]] = []
    for number, (sections_read, why) in EVENING.items():
        titles = tuple(sections_read.split("; "))
        (path,) = folder.glob(f"{number}_*.py")
        opening = sections(path)[0].title
        stops.append((path, titles, chosen(path, (opening, *titles)), why))
    return stops
