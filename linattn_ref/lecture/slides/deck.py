"""The text of a deck: Markdown, a slide between two lines of ``---``.

::

    <!-- surprise, 2 min -->
    ## Small random weights are the most compressible

    At a quarter of the rank it holds **97%**.

    ![A curve far above the others](figure:spectrum#1)

    Note:
    What the lecturer says.

    From chapter 2: "random weights (deviation .02) has 97%"

The first line says what kind of slide it is and how long it takes. A slide has one picture at most, on a line of its
own. What follows ``Note:`` is what the lecturer says. Its lines ``From ...``, which name the place where the slide's
numbers were measured, are not in the speaker's window but on the deck's last slides.
The deck of the course takes slides from the chapters' decks, ``<!-- from 02: question, surprise -->``.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["KINDS", "Deck", "Picture", "Slide", "parse", "read"]

KINDS = {  # and what stands above the title
    **dict.fromkeys(("title", "part", "plan"), ""),
    "question": "The question",
    "idea": "The idea",
    "formula": "The formula",
    "code": "The code",
    "gradient": "By hand",
    "picture": "The picture",
    "measured": "Measured",
    "surprise": "The surprise",
    "exercise": "Exercise",
    "remember": "To remember",
}
HEAD = re.compile(r"<!--\s*(\w+),\s*(\d+) min\s*-->\n")
FROM = re.compile(r"<!--\s*from (\d\d):\s*([\w, ]+?)\s*-->\s*")
SOURCE = re.compile(r"^From .*$", re.MULTILINE)
PICTURE = re.compile(r"^!\[([^\]]+)\]\((\w+:[\w#,.-]+)\)$", re.MULTILINE)


class Picture(NamedTuple):
    alt: str
    source: str  # as `pictures` describes it


class Slide(NamedTuple):
    kind: str  # of KINDS
    minutes: int
    text: str  # Markdown, without the picture
    picture: Picture | None
    note: str  # Markdown
    chapter: str  # "02"; "00" is the course

    @property
    def spoken(self) -> str:
        """The note without its lines ``From ...``."""
        return SOURCE.sub("", self.note).strip()

    @property
    def sources(self) -> tuple[str, ...]:
        """The note's lines ``From ...``, without that word."""
        return tuple(line.removeprefix("From ") for line in SOURCE.findall(self.note))


class Deck(NamedTuple):
    title: str  # the first slide's
    slides: tuple[Slide, ...]


def read(path: Path) -> Deck:
    """The deck in a file, ``NN_name.md``.

    Raises
    ------
    ValueError
        As `parse`; the message begins with the file's name.
    """
    try:
        return parse(path.read_text(encoding="utf-8"), path.name[:2], path.parent)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def parse(text: str, chapter: str, folder: Path) -> Deck:
    """A deck from its text; ``folder`` has the decks that it takes slides from.

    Raises
    ------
    ValueError
        A slide without its first line, of an unknown kind, without a note, or with a picture that would be lost;
        a first slide that begins nothing; slides taken from where there are none.
    """
    slides = tuple(_slides(re.split(r"^---$", text, flags=re.MULTILINE), chapter, folder))
    title = re.search(r"^# (.+)$", slides[0].text, re.MULTILINE)
    if title is None or slides[0].kind not in ("title", "part"):
        raise ValueError("slide 1 must be a `title` or a `part`, with a title `# ...`")
    return Deck(title[1], slides)


def _slides(parts: Iterable[str], chapter: str, folder: Path) -> Iterator[Slide]:
    for number, part in enumerate(parts, 1):
        taken = FROM.fullmatch(part.strip() + "\n")
        if taken:
            try:
                yield from _taken(taken[1], [kind.strip() for kind in taken[2].split(",")], folder)
            except ValueError as error:
                raise ValueError(f"slide {number}, {taken[0].strip()}: {error}") from error
        else:
            yield _slide(part.strip() + "\n", number, chapter)


def _slide(part: str, number: int, chapter: str) -> Slide:
    head = HEAD.match(part)
    if head is None or head[1] not in KINDS:
        raise ValueError(f"slide {number} must begin with `<!-- KIND, M min -->`, KIND one of {', '.join(KINDS)}")
    text, _, note = part[head.end() :].partition("\nNote:\n")
    if not note.strip():
        raise ValueError(f"slide {number} has no note")
    pictures = [Picture(*found) for found in PICTURE.findall(text)]
    if len(pictures) > 1:
        raise ValueError(f"slide {number} has {len(pictures)} pictures")
    lost = re.search(r"!\[[^\]]*\]\([^)]*\)|<img\b[^>]*>", PICTURE.sub("", text))
    if lost:
        raise ValueError(
            f"slide {number}: the deck would lose the picture {lost[0]}: write ![what it shows](file:NAME.png) on a"
            " line of its own, with the file next to the deck"
        )
    picture = pictures[0] if pictures else None
    return Slide(head[1], int(head[2]), PICTURE.sub("", text).strip(), picture, note.strip(), chapter)


def _taken(chapter: str, kinds: Iterable[str], folder: Path) -> Iterator[Slide]:
    """Slides of a chapter's deck, by their kinds; of those with one kind the first, or with "idea 2" the second."""
    paths = list(folder.glob(f"{chapter}_*.md"))
    if len(paths) != 1:
        raise ValueError(f"{chapter} is the number of {len(paths)} decks, not of one")
    slides = read(paths[0]).slides
    for wanted in kinds:
        named = re.fullmatch(r"(\w+)(?: +([1-9]\d*))?", wanted)
        found = named and [slide for slide in slides if slide.kind == named[1]][int(named[2] or 1) - 1 :]
        if not found:
            raise ValueError(f"{paths[0].name} has no slide {wanted!r}, KIND or KIND and a number from 1")
        yield found[0]
