"""``linattn-ref assignment`` and ``grade``: a sheet of homework as a folder, and what its folders are worth."""

import argparse
import re
from pathlib import Path
from typing import Any

from linattn_ref.atomic import check_writable, write_all
from linattn_ref.cli.options import add_command, at_least, check_modes, file_of, say

__all__ = ["add"]


def run_assignment(arguments: argparse.Namespace) -> int:
    """Write a sheet of homework: a folder for students, or with --instructor the solution and how to grade.

    NAME is one of --list, or a file of your own, NN_name.toml; CONTRIBUTING.md says how to write one, and --check
    tells whether it does what it says. Exit status 1: it does not.
    """
    from linattn_ref.homework import names, read, rehearse, write

    check_modes(arguments, {"list": (), "check": ("name",)}, {"name": "NAME"})
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


def run_grade(arguments: argparse.Namespace) -> int:
    """Grade the answer.py of a folder: points per item, and what is wrong in words.

    The submission runs in a process of its own, under bubblewrap where that is installed, with limits of time and
    memory and without this package; the numbers expected stay with the grader. The same submission and seed give the
    same points. Students know the seed 0; choose one of your own.

    Exit status 0: graded, whatever the points. 2: nothing could be graded.
    """
    from linattn_ref.homework import Apart, Report, grade, names, read
    from linattn_ref.homework.apart import protection

    path = arguments.folder / "answer.py"
    if not path.is_file():
        raise ValueError(f"DIR: expected a folder with answer.py, got {arguments.folder}")
    sheet = read(arguments.sheet or sheet_of(path.read_text(encoding="utf-8", errors="replace"), names()))
    for path in filter(None, (arguments.json, arguments.html)):
        check_writable(path)
    with Apart(arguments.folder, sheet) as submission:
        report = Report(sheet, grade(sheet, submission, seed=arguments.seed), protection())
    say(report)
    for path, text in ((arguments.json, report.as_json()), (arguments.html, report.as_html())):
        if path:
            write_all({path: text})
            say("wrote", path)
    return 0


def sheet_of(text: str, ours: list[str]) -> str:
    """The name after ``SHEET =``: one of ours, for a sheet is code that the grader runs."""
    found = re.search(r'^SHEET = "(\w+)"$', text, re.MULTILINE)
    if found is None or found[1] not in ours:
        raise ValueError('answer.py: expected a line SHEET = "name" with one of our sheets; or name it with --sheet')
    return found[1]


def add(commands: Any) -> None:
    """The commands and their options."""
    option = add_command(commands, "assignment", run_assignment).add_argument
    option("name", nargs="?", metavar="NAME", help="a sheet")
    option("--out", type=Path, metavar="DIR", help="a new folder, or an empty one")
    option("--instructor", action="store_true", help="the solution, answers, notes and questions for the class")
    option("--check", action="store_true", help="grade the solution, and each mistake that the sheet names")
    option("--list", action="store_true", help="the sheets")

    option = add_command(commands, "grade", run_grade).add_argument
    option("folder", type=Path, metavar="DIR", help="a folder with answer.py")
    option("--sheet", metavar="NAME", help="the sheet, where answer.py does not say, or a file of your own")
    option("--seed", type=at_least(1), default=1, help="of the numbers and sizes that are asked (default: 1)")
    told = "write the result as Gradescope's autograder reads it"
    option("--json", type=file_of(".json"), metavar="FILE.json", help=told)
    option("--html", type=file_of(".html", ".htm"), metavar="FILE.html", help="write a page for the student")
