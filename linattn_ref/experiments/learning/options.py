"""How the command line describes the options of a task: an `Option` in the annotation of each argument."""

import inspect
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

__all__ = ["Heads", "Inner", "Layers", "Option", "Peak", "TextFile", "Width", "options_of"]


class Option(NamedTuple):
    """How the command line describes an argument of ``begin``, or a field of ``Shape``.

    The type comes from the annotation too; the default is added to ``help``, unless that names it.
    """

    help: str = ""
    metavar: str | None = None
    least: int = 1  # if it is a whole number
    choices: Iterable[str] = ()
    word: str | None = None  # on the command line, if that is not the name


def options_of(module: Any) -> Iterator[tuple[str, Any, Any, Option]]:
    """Of a task: an option's name, its type or what it may be, its default, and what describes it."""
    hints = typing.get_type_hints(module.begin, include_extras=True)
    hints |= typing.get_type_hints(module.Shape, include_extras=True)
    defaults = {name: one.default for name, one in inspect.signature(module.begin).parameters.items()}
    for name, hint in hints.items():
        for said in getattr(hint, "__metadata__", ()):
            if isinstance(said, Option):
                kinds = typing.get_args(hint.__origin__) or (hint.__origin__,)
                yield name, kinds, {**defaults, **module.Shape._field_defaults}[name], said


# --- Of several tasks ---------------------------------------------------------------------------------------------

TextFile = Annotated[Path | None, Option("UTF-8 text to learn from (default: film reviews, fetched once)", "FILE")]
Peak = Annotated[float, Option("the highest learning rate", "RATE")]
Width = Annotated[int, Option("", "E", 2)]
Inner = Annotated[int, Option("width within the feed-forward layers", "F")]
Heads = Annotated[int, Option("", "H")]
Layers = Annotated[int, Option("", "L")]
