"""``linattn-ref assignment``: a sheet of homework as a folder."""

import argparse
from pathlib import Path
from typing import Any

from linattn_ref.cli.options import add_command, say

__all__ = ["add_assignment"]


def run_assignment(arguments: argparse.Namespace) -> int:
    """Write a sheet of homework: a folder for students, or with --instructor the solution and how to grade.

    NAME is one of --list, or a file of your own, NN_name.toml; CONTRIBUTING.md says how to write one, and --check
    tells whether it does what it says. Exit status 1: it does not.
    """
    from linattn_ref.homework import names, read, rehearse, write

    if arguments.list:
        for name in names():
            sheet = read(name)
            say(f"{name}: {sheet.title}, {sheet.hours} hours, {sheet.points:g} points")
        return 0
    if not arguments.name or not (arguments.out or arguments.check):
        raise ValueError("expected NAME and --out DIR, NAME and --check, or --list")
    if arguments.check:
        wrong = 0
        for what, complaint in rehearse(read(arguments.name)):
            wrong += bool(complaint)
            say(f"NO  {what}: {complaint}" if complaint else f"ok  {what}")
        return int(wrong > 0)
    written = write(read(arguments.name), arguments.out, instructor=arguments.instructor)
    say(f"wrote {len(written)} files to {arguments.out}")
    return 0


def add_assignment(commands: Any) -> None:
    """The command and its options."""
    option = add_command(commands, "assignment", run_assignment).add_argument
    option("name", nargs="?", metavar="NAME", help="a sheet")
    option("--out", type=Path, metavar="DIR", help="a new folder, or an empty one")
    option("--instructor", action="store_true", help="the solution, answers, notes and questions for the class")
    option("--check", action="store_true", help="grade the solution, and each mistake that the sheet names")
    option("--list", action="store_true", help="the sheets")
