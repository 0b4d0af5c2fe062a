"""What the command line is to say of what may be chosen: options of tasks, where their arguments are."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, NamedTuple

__all__ = ["Heads", "Inner", "Layers", "Option", "Peak", "TextFile", "Width"]


class Option(NamedTuple):
    """What the command line is to say of an argument of ``begin``, or of a field of ``Shape``.

    The rest it knows from the annotation; what ``help`` does not say itself of a default, is added.
    """

    help: str = ""
    metavar: str | None = None
    least: int = 1  # of a whole number
    choices: Iterable[str] = ()
    word: str | None = None  # unless it is the name


# --- Of several tasks ---------------------------------------------------------------------------------------------

TextFile = Annotated[Path | None, Option("UTF-8 text to learn from (default: film reviews, fetched once)", "FILE")]
Peak = Annotated[float, Option("the highest learning rate", "RATE")]
Width = Annotated[int, Option("", "E", 2)]
Inner = Annotated[int, Option("width within the feed-forward layers", "F")]
Heads = Annotated[int, Option("", "H")]
Layers = Annotated[int, Option("", "L")]
