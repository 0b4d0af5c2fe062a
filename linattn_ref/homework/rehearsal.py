"""Whether a sheet does what it promises: ``linattn-ref assignment SHEET --check``, for those who write one."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from linattn_ref.homework.apart import Apart, Failed
from linattn_ref.homework.grading import grade, module_of, solution
from linattn_ref.homework.handout import write
from linattn_ref.homework.pages import mistaken, texts
from linattn_ref.homework.sheet import Mistake, Sheet
from linattn_ref.homework.values import arrays_of, call, finder, pack

__all__ = ["Here", "rehearse"]

RUN_TESTS = "import test_answer as t; [f() for name, f in vars(t).items() if name.startswith('test_')]"


class Here:
    """A submission in this process, for texts that are trusted."""

    def __init__(self, text: str) -> None:
        self.module = module_of(text)
        self.find, self.array = finder(lambda: [self.module]), arrays_of(self.module, [])

    def begin(self, peak: float = 0.0) -> None:
        """An item begins; there is no limit here but of what a call holds at once."""
        self.peak = peak

    def call(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """What a function returns, as JSON has it."""
        try:
            with np.errstate(all="ignore"):
                return call(self.module, pack(name, args, options, self.peak), self.find, self.array)
        except Exception as error:
            raise Failed(f"{type(error).__name__}: {error}") from None


def rehearse(sheet: Sheet) -> Iterator[tuple[str, str]]:
    """What should be so, one after the other, and what is wrong with it: nothing, where it is."""
    broken = {x.name: complaint for x in sheet.mistakes if (complaint := unplanted(sheet, x))}
    yield from (("each mistake can be planted", f"{name}: {why}") for name, why in broken.items())
    sheet = replace(sheet, mistakes=[x for x in sheet.mistakes if x.name not in broken])
    try:
        solution(sheet)
        solved = grade(sheet, Here(texts(sheet, solved=True, alone=False).answer))
    except ValueError as error:
        yield "the solution and the checks run", str(error)
        return
    yield "the solution has all points", "; ".join(f"{x.item.name}: {x.why}" for x in solved if not x.points)
    empty = grade(sheet, Here(texts(sheet, solved=False, alone=False).answer))
    yield "the handout has none", ", ".join(x.item.name for x in empty if x.points)
    yield "the handout's tests accept the solution", tested(sheet)
    yield "the solution keeps to the limits", limited(sheet)
    for mistake in sheet.mistakes:
        yield f"{mistake.name} costs {mistake.item} and is named", told(sheet, mistake)


def tested(sheet: Sheet) -> str:
    """The error of the handout's tests, run on the solution."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "work"
        write(sheet, folder)
        write(sheet, Path(place) / "all", instructor=True)
        shutil.copytree(Path(place) / "all" / "solution", folder, dirs_exist_ok=True)
        words = [sys.executable, "-c", RUN_TESTS]
        run = subprocess.run(words, cwd=folder / "tests", capture_output=True, text=True, check=False)
    return run.stderr.strip().rpartition("\n")[2]


def limited(sheet: Sheet) -> str:
    """What the solution loses in a process of its own, with limits of time and memory."""
    with tempfile.TemporaryDirectory() as place:
        write(sheet, Path(place), instructor=True)
        with Apart(Path(place) / "solution", sheet) as submission:
            return "; ".join(f"{x.item.name}: {x.why}" for x in grade(sheet, submission) if not x.points)


def unplanted(sheet: Sheet, mistake: Mistake) -> str:
    """Why the solution with this mistake is no module."""
    try:
        module_of(mistaken(sheet, mistake))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def told(sheet: Sheet, mistake: Mistake) -> str:
    """What is wrong with a mistake that is planted."""
    lost = [x for x in grade(sheet, Here(mistaken(sheet, mistake))) if not x.points]
    if [x.item.name for x in lost] != [mistake.item]:
        return f"it costs {', '.join(x.item.name for x in lost) or 'nothing'}"
    return "" if mistake.name in lost[0].named else f"not named: {' '.join(lost[0].says) or lost[0].why}"
