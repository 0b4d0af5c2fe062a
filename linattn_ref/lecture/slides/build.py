"""From a chapter's number to its file."""

from collections.abc import Sequence
from pathlib import Path

from linattn_ref import clone
from linattn_ref.atomic import write_all
from linattn_ref.lecture.slides import deck, page
from linattn_ref.telling import Say, silent

__all__ = ["decks", "make", "rendered"]

COURSES = {"00_course": "all", "00_short": "short"}  # decks that take slides from the chapters', and their words


def make(wanted: Sequence[str], out: Path, *, say: Say = silent) -> list[Path]:
    """Write ``out/NN_name.html`` for chapters by number, and the decks of `COURSES` for ``"all"`` and ``"short"``.

    Parameters
    ----------
    wanted : sequence of str
        Numbers as ``"2"`` or ``"02"``; ``"all"``, one deck for the whole course; ``"short"``, one lecture of 90
        minutes.
    out : Path
    say : callable
        Called with what is written, one line per file.

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
        The libraries from npm are not available.
    """
    known = decks()
    names = [word if word in COURSES.values() else word.zfill(2) for word in wanted]
    for word, name in zip(wanted, names, strict=True):
        if name not in known:
            there = ", ".join(str(int(name)) if name.isdecimal() else name for name in known)
            raise ValueError(f"slides: no deck of chapter {word!r}; there are {there}")
    found = page.libraries()
    written = []
    for name in dict.fromkeys(names):
        file = out / f"{known[name].stem}.html"
        text = rendered(known[name], found)
        written += write_all({file: text})
        say(f"{file}: {len(text.encode()) / 1e6:.1f} MB")
    return written


def decks() -> dict[str, Path]:
    """The decks' files by chapter, or by the word that calls them: ``"all"``, ``"short"``.

    Raises
    ------
    FileNotFoundError
        There is no clone: they are not installed with the package.
    """
    clone.check("slides")
    folder = clone.ROOT / "notebooks" / "slides"
    return {COURSES.get(path.stem, path.name[:2]): path for path in sorted(folder.glob("[0-9][0-9]_*.md"))}


def rendered(path: Path, found: dict[str, str]) -> str:
    """The HTML of one deck."""
    titles = {number: deck.read(file).title for number, file in decks().items()}
    return page.page(deck.read(path), titles, clone.ROOT, found)
