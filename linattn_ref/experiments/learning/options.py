"""How the command line describes the options of a task: an `Option` in the annotation of each argument."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, NamedTuple

__all__ = ["Heads", "Inner", "Layers", "Option", "Peak", "TextFile", "Width"]


class Option(NamedTuple):
    """How the command line describes an argument of ``begin``, or a field of ``Shape``.

    The type comes from the annotation too; the default is added to ``help``, unless that names it.
    """

    help: str = ""
    metavar: str | None = None
    least: int = 1  # if it is a whole number
    choices: Iterable[str] = ()
    word: str | None = None  # on the command line, if that is not the name


# --- Of several tasks ---------------------------------------------------------------------------------------------

TextFile = Annotated[Path | None, Option("UTF-8 text to learn from (default: film reviews, fetched once)", "FILE")]
Peak = Annotated[float, Option("the highest learning rate", "RATE")]
Width = Annotated[int, Option("", "E", 2)]
Inner = Annotated[int, Option("width within the feed-forward layers", "F")]
Heads = Annotated[int, Option("", "H")]
Layers = Annotated[int, Option("", "L")]
