"""The command line: ``linattn-ref`` and ``python -m linattn_ref``.

What a subcommand needs is imported when it runs, so that ``--help`` and errors come at once. Whatever is wrong with
what the user gave ends in one line on standard error, after the usage if an option is wrong, and exit status 2.
"""

import argparse
import io
import os
import shlex
import sys
from collections.abc import Sequence
from functools import cache

from linattn_ref import __version__
from linattn_ref.cli import bench, conform, figures, generate, homework, lecture, spectrum, train
from linattn_ref.cli.options import NobodyReads, Parser, tell

__all__ = ["main"]

# Which extra brings a module that is not installed; every other one is in "spectrum".
EXTRAS = {
    **dict.fromkeys(("distributed", "dask"), "dask"),
    **dict.fromkeys(("torch", "transformers"), "peers"),
    **dict.fromkeys(("sphinx", "myst_nb", "furo", "sphinx_design", "numpydoc"), "site"),
    **dict.fromkeys(("markdown_it", "mdit_py_plugins", "pygments", "IPython"), "site"),
    "playwright": "browser",
    "ml_dtypes": "half",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit status: 0 done, 1 judged wrong, 2 an error told, 130 Ctrl-C, 141 nobody reads."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whose encoding may have no sign for what a network wrote
            stream.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = parser().parse_args(words)
    # What a record says makes the figure again; a run that was resumed ends with the same record as one that was not.
    arguments.command_line = shlex.join(["linattn-ref", *(word for word in words if word != "--resume")])
    try:
        return arguments.run(arguments) or 0
    except KeyboardInterrupt:
        tell(f"linattn-ref: interrupted{arguments.if_interrupted}")
        return 130
    except NobodyReads:  # nor has to be told; Python would do so when it closes its streams
        with open(os.devnull, "w") as nowhere:
            for stream in (sys.stdout, sys.stderr):
                os.dup2(nowhere.fileno(), stream.fileno())
        return 141  # as of a process that SIGPIPE ends
    except (ArithmeticError, ImportError, MemoryError, OSError, RuntimeError, TypeError, ValueError) as error:
        if arguments.debug:
            raise
        by_others = isinstance(error, (ChildProcessError, ConnectionError))  # as Ctrl-C, they may come at any time
        tell(f"linattn-ref: error: {one_line(error)}{arguments.if_interrupted * by_others}")
        return 2


def one_line(error: Exception) -> str:
    """What went wrong, on one line."""
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("linattn_ref"):
        module = error.name.partition(".")[0]
        extra = EXTRAS.get(module, "spectrum")
        return f"this needs {module}, which is not installed: pip install 'linattn-ref[{extra}]'"
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    told = " ".join(str(error).split())
    if isinstance(error, MemoryError):
        return f"out of memory{told and f': {told}'}"
    return told or type(error).__name__


@cache
def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    top = Parser(prog="linattn-ref", description="Efficient attention, written to be read.")
    top.set_defaults(debug=False)
    top.add_argument("--version", action="version", version=f"linattn-ref {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in (spectrum, figures, bench, train, generate, conform, homework, lecture):
        module.add(commands)
    return top
