"""``linattn-ref figures``: the committed figures, drawn again."""

import argparse
from pathlib import Path
from typing import Any

from linattn_ref.cli.options import add_command, add_drawing, at_least, given, say, workers_of

__all__ = ["add"]


def run_figures(arguments: argparse.Namespace) -> None:
    """Draw the committed figures again, and write their gallery and the tables of README.md.

    To be run where README.md and figures/ are. A name for --only is that of a file in figures/,
    or how several begin ("speech"), or "tables".
    """
    from linattn_ref.experiments.publishing import gallery

    out = arguments.out or Path("out/figures" if arguments.quick else "figures")
    how = {"out": out, "style_name": arguments.style, "workers": workers_of(arguments)}
    gallery.make(**given(gallery.make, arguments) | how, say=say)


def add(commands: Any) -> None:
    """The command and its options."""
    command = add_command(commands, "figures", run_figures)
    option = command.add_argument
    option("--only", nargs="+", metavar="NAME", help="draw only these")
    option("--quick", action="store_true", help="draw small ones, for a test, into out/figures")
    told = "draw from the records in --out, or else in figures/, without measuring"
    option("--redraw", action="store_true", help=told)
    option("--parts", type=Path, metavar="DIR", help="keep what takes minutes piece by piece, and resume from there")
    option("--workers", type=at_least(1), metavar="W", help="processes (default: all cores)")
    add_drawing(command, out=None)
