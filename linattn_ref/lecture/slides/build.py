"""From a chapter's number to its file."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from linattn_ref import clone
from linattn_ref.atomic import write_all
from linattn_ref.lecture.slides import deck, page

__all__ = ["decks", "make", "rendered"]

COURSE = "00"


def make(wanted: Sequence[str], out: Path, *, say: Callable[[str], object] = lambda line: None) -> list[Path]:
    """Write ``out/NN_name.html`` for chapters by number, and ``out/00_course.html`` for ``"all"``.

    Parameters
    ----------
    wanted : sequence of str
        Numbers as ``"2"`` or ``"02"``, or ``"all"``: one deck for the whole course.
    out : Path
    say : callable
        Told what is written, a line a file.

    Returns
    -------
    list of Path
        The files, each whole or left as it was.

    Raises
    ------
    ValueError
        No such chapter, or a deck that names what there is not.
    FileNotFoundError
        There is no clone.
    FetchError
        The libraries from npm cannot be had.
    """
    known = decks()
    names = [COURSE if word == "all" else word.zfill(2) for word in wanted]
    for word, name in zip(wanted, names, strict=True):
        if name not in known or (name == COURSE and word != "all"):
            there = ", ".join(str(int(number)) for number in known if number != COURSE)
            raise ValueError(f"slides: no deck of chapter {word!r}; there are {there} and all")
    found = page.libraries()
    written = []
    for name in dict.fromkeys(names):
        file = out / f"{known[name].stem}.html"
        text = rendered(known[name], found)
        written += write_all({file: functools.partial(_write, text)})
        say(f"{file}: {len(text.encode()) / 1e6:.1f} MB")
    return written


def decks() -> dict[str, Path]:
    """The decks' files by chapter; ``"00"`` is the course.

    Raises
    ------
    FileNotFoundError
        There is no clone: they are not installed with the package.
    """
    clone.check("slides")
    folder = clone.ROOT / "notebooks" / "slides"
    return {path.name[:2]: path for path in sorted(folder.glob("[0-9][0-9]_*.md"))}


def rendered(path: Path, found: page.Libraries) -> str:
    """The HTML of one deck."""
    titles = {number: deck.read(file).title for number, file in decks().items()}
    return page.page(deck.read(path), titles, clone.ROOT, found)


def _write(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")
