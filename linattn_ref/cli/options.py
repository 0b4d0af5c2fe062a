"""What the subcommands of ``linattn-ref`` have in common."""

import argparse
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from linattn_ref.visible import visible

__all__ = ["KEPT", "Parser", "add_command", "add_drawing", "add_out", "at_least", "check_modes", "curve", "file_of"]
__all__ += ["given", "in_words", "report", "say", "tell", "watched", "workers_of"]

MINUTE = 60.0  # seconds
OF_ALL = {"command_line", "debug", "if_interrupted", "run"}  # what every command's arguments have
KEPT = "; what is done is kept: the same command with --resume goes on from there"


class Parser(argparse.ArgumentParser):
    """One whose errors show what was typed, and do not send it to the terminal."""

    late: Callable[[], object] | None = None  # adds options that are not known before this is the command

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        if self.late is not None:
            late, self.late = self.late, None
            late()
        return super().parse_known_args(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        super().error(visible(message))


def add_command(commands: Any, name: str, run: Callable[..., int | None], description: str | None = None) -> Parser:
    """A subcommand that calls ``run``; its help is the description, or the docstring of ``run``."""
    text = inspect.cleandoc(description or run.__doc__ or "")
    command = commands.add_parser(name, help=text.splitlines()[0], description=text)
    # Without a default: that of `train characters` would overwrite what `train --debug` has found.
    command.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show where an error comes from"
    )
    command.set_defaults(run=run, if_interrupted="")
    return command


def at_least(least: int) -> Callable[[str], int]:
    """An option's type: a whole number, ``least`` or more."""

    def whole_number(word: str) -> int:
        if not word.isdecimal() or int(word) < least:
            raise argparse.ArgumentTypeError(f"expected a whole number, at least {least}; got {word!r}")
        return int(word)

    return whole_number


def file_of(*endings: str) -> Callable[[str], Path]:
    """An option's type: a file whose name ends so, and thus no kernel, and no report of another form."""

    def file(word: str) -> Path:
        if not word.endswith(endings):
            raise argparse.ArgumentTypeError(f"expected a file name that ends in {endings[0]}, got {word!r}")
        return Path(word)

    return file


def check_modes(arguments: argparse.Namespace, modes: Mapping[str, Sequence[str]], words: Mapping[str, str]) -> None:
    """An option that makes a command do something else comes with no option that it would ignore.

    ``modes`` has such options, and which others each of them uses; ``words`` are those that are not called ``--name``.
    """
    given = {name for name, x in vars(arguments).items() if x is not None and x is not False} - OF_ALL
    for mode, used in modes.items():
        if mode in given and not given <= {mode, *used}:
            ignored = sorted(words.get(name, f"--{name}") for name in given - {mode, *used})
            raise ValueError(f"--{mode}: leave out what it would ignore: {', '.join(ignored)}")


def add_out(command: argparse.ArgumentParser, out: Path | None, told: str = "%(default)s") -> None:
    """Where the files go."""
    command.add_argument("--out", type=Path, default=out, metavar="DIR", help=f"where to write (default: {told})")


def add_drawing(command: argparse.ArgumentParser, out: Path | None = Path("out")) -> None:
    """Where a figure goes and what it looks like."""
    add_out(command, out, "figures" if out is None else "%(default)s")
    told = "sizes of letters and lines, for print or for a slide"
    command.add_argument("--style", choices=("paper", "projector"), default="paper", help=told)


def workers_of(arguments: argparse.Namespace) -> int:
    """The processes asked for; by default as many as there are cores that this process may use."""
    import joblib

    return arguments.workers or joblib.cpu_count()


def given(function: Callable[..., Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """What the command was given of the arguments that a function takes by the same names."""
    taken = inspect.signature(function).parameters
    return {name: x for name, x in vars(arguments).items() if name in taken and x is not None}


class NobodyReads(Exception):
    """What is said goes into a pipe that is closed at its other end, as by ``| head``."""


def say(*words: object, sep: str = " ", file: TextIO | None = None) -> None:
    """Print; control characters of a text or a file name are shown, and not sent to the terminal."""
    try:
        print(visible(sep.join(map(str, words))), file=file, flush=True)
    except BrokenPipeError:  # of this pipe, not of a worker's
        raise NobodyReads from None


def tell(line: str) -> None:
    """Say it on standard error."""
    say(line, file=sys.stderr)


def watched(steps: Sequence[Any], unit: str = "step", said: Callable[[], str] = str) -> Iterator[Any]:
    """The steps of something long: a bar on a terminal; elsewhere lines that say how long is left, if it is minutes.

    The first comes after the second step, the others after one minute, two, four, and so on, and each hour. The first
    step, which compiles, does not count. What is ``said`` beside it may change from step to step.
    """
    from tqdm import tqdm

    wait = 0.0
    bar = tqdm(steps, unit=unit, file=sys.stderr, disable=None, dynamic_ncols=True)
    for done, step in enumerate(bar):
        bar.set_postfix_str(said(), refresh=False)
        now = time.monotonic()
        if done < 2:
            begun = now
        spent = now - begun
        left = spent / (done - 1) * (len(steps) - done) if done > 1 else 0.0
        if not sys.stderr.isatty() and left > 2 * MINUTE and spent >= wait:
            tell(", ".join([f"{unit} {done} of {len(steps)}: {in_words(left)} left", *filter(None, [said()])]))
            wait = spent + min(max(MINUTE, wait), 60 * MINUTE)
        yield step


def in_words(seconds: float) -> str:
    """Return a duration in words, roughly.

    >>> in_words(19), in_words(100), in_words(5000), in_words(9e4)
    ('about 20 seconds', 'about 2 minutes', 'about 83 minutes', 'about 25 hours')
    """
    minutes = round(seconds / MINUTE)
    if minutes < 2:
        return f"about {max(10, round(seconds, -1)):.0f} seconds"
    return f"about {minutes} minutes" if minutes < 100 else f"about {round(minutes / 60)} hours"


def curve(values: Sequence[float], width: int = 24) -> str:
    """Numbers as a curve one line high; of more than ``width`` the last, and every so many before it.

    Digits where there are no such signs.

    >>> curve([4, 3, 2, 1.5, 1]), curve([9, 3, 2, 1, 0], width=3)
    ('█▆▃▂▁', '█▃▁')
    """
    signs = "▁▂▃▄▅▆▇█"
    try:
        signs.encode(sys.stderr.encoding)
    except UnicodeEncodeError:
        signs = "01234567"
    chosen = values[:: min(-1, -len(values) // width)][::-1]
    least, most = min(chosen, default=0.0), max(chosen, default=0.0)
    return "".join(signs[round(7 * (value - least) / ((most - least) or 1.0))] for value in chosen)


def report(name: str, results: Any, arguments: argparse.Namespace, *lines: str) -> None:
    """Print the table of the figure of that name, and further lines; save it as the options say, and name the files."""
    from linattn_ref.experiments.publishing import catalogue, gallery

    made_by = {"command": arguments.command_line, "seed": arguments.seed, "style_name": arguments.style}
    say(catalogue.module_of(name).table(results), *lines, sep="\n")  # first: the disk may be full
    say("wrote", *gallery.save(name, results, arguments.out, **made_by))
