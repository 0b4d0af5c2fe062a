"""``linattn-ref site`` and ``linattn-ref slides``: what a lecture needs besides the chapters."""

import argparse
from pathlib import Path
from typing import Any

from linattn_ref.cli.options import add_command, say

__all__ = ["add_lecture"]


def add_lecture(commands: Any) -> None:
    """The commands of the lecture."""
    _add_site(commands)
    _add_slides(commands)


# --- linattn-ref site -----------------------------------------------------------------------------------------------


def run_site(arguments: argparse.Namespace) -> None:
    """Build the web pages: chapters, formulas beside code, gallery, API; they need no network and no Python.

    To be run in a clone, whose chapters have been executed. The folder is replaced when the new one is whole.
    """
    from linattn_ref.lecture.site import build

    build.make(arguments.out, run=arguments.run_cells, sentence=arguments.sentence, say=say)


def _add_site(commands: Any) -> None:
    command = add_command(commands, "site", run_site)
    command.add_argument(
        "--out", type=Path, default=Path("out/site"), metavar="DIR", help="where to write (default: %(default)s)"
    )
    command.add_argument(
        "--run",
        action="store_true",
        dest="run_cells",
        help="have the cells of most chapters run, and changed code of mechanisms checked, in the browser (adds 38 MB)",
    )
    command.add_argument(
        "--sentence",
        action="store_true",
        help="add a page where a pretrained network reads the reader's own text, and shows its attention and how low "
        "its rank is (adds 48 MB, or 21 MB to those of --run)",
    )


# --- linattn-ref slides ---------------------------------------------------------------------------------------------


def run_slides(arguments: argparse.Namespace) -> None:
    """Make slides of chapters, or of the whole course: one HTML file each, with notes for the speaker.

    To be run in a clone. The files need no network. In the browser `s` opens the speaker's window; with `?print-pdf`
    at the end of the address the browser prints them as PDF, a page per slide.
    """
    from linattn_ref.lecture.slides import build

    build.make(arguments.chapters, arguments.out, say=say)


def _add_slides(commands: Any) -> None:
    command = add_command(commands, "slides", run_slides)
    command.add_argument(
        "chapters",
        nargs="+",
        metavar="NN|all|short",
        help="chapters; all: one deck for the course of two hours; short: one lecture of 90 minutes",
    )
    command.add_argument(
        "--out", type=Path, default=Path("out/slides"), metavar="DIR", help="where to write (default: %(default)s)"
    )
