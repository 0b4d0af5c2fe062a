"""The folder that a student gets, and what an instructor gets beside it."""

from __future__ import annotations

import json
import secrets
import shutil
import textwrap
from pathlib import Path
from typing import Any

from linattn_ref import atomic
from linattn_ref.homework import checking, grading, values
from linattn_ref.homework.apart import IMPORTING
from linattn_ref.homework.pages import Texts, texts
from linattn_ref.homework.sheet import Item, Sheet, template

__all__ = ["files", "write"]


def files(sheet: Sheet, *, instructor: bool = False) -> dict[str, str]:
    """The files of a folder by name: the student's, or the instructor's."""
    found = folder(texts(sheet, solved=instructor))
    found["theory.md"] = theory(sheet, answers=instructor)
    if instructor:
        return {f"solution/{name}" if name != "theory.md" else name: text for name, text in found.items()} | {
            "GRADING.md": notes(sheet),
            "discussion.md": "# Questions for the class\n\n" + "\n".join(f"- {x}" for x in sheet.discussion) + "\n",
        }
    found["README.md"] = readme(sheet)
    found["tests/test_answer.py"], found["tests/expected.json"] = tests(sheet), expected(sheet)
    for module in (checking, values):
        path = Path(str(module.__file__))
        found[f"tests/{path.name}"] = path.read_text(encoding="utf-8")
    return found


def folder(written: Texts) -> dict[str, str]:
    return {"answer.py": written.answer, **{f"given/{name}.py": text for name, text in written.given.items()}}


def readme(sheet: Sheet) -> str:
    libraries = " or ".join(["NumPy", *({"torch": "PyTorch", "jax": "JAX"}[x] for x in sheet.arrays)])
    note = (
        "\nIf `answer.py` imports PyTorch or JAX, your functions are called with its arrays; the gradient is still"
        "\nyours to derive. A kernel in Triton goes behind a function of PyTorch.\n"
    )
    return template("README.md").format(
        title=sheet.title,
        hours=sheet.hours,
        libraries=libraries,
        libraries_note=note if sheet.arrays else "",
        goals="\n".join(f"- {x}" for x in sheet.goals),
        reading=sheet.reading,
        tolerance=grading.TOLERANCE,
        seconds=sheet.seconds,
        importing=IMPORTING,
        memory=sheet.memory,
        items="\n".join(f"| {x.title} | `{'`, `'.join(x.functions)}` | {x.points:g} |" for x in sheet.items),
    )


def tests(sheet: Sheet) -> str:
    """The text of ``tests/test_answer.py``."""
    kept = [part.rename.get(name, name) for part in sheet.parts for name in part.keep if "." not in name]
    names = [f"{name} = answer.{name}" for name in kept]
    names += [f'{name} = wrapped(answer, "{name}", {sheet.arrays})' for name in sheet.functions]
    parts = [test(sheet, number, item) for number, item in enumerate(sheet.items)]
    return template("test_answer.txt").format(names="\n".join(names), sizes=sheet.sizes, tests="\n\n\n".join(parts))


def test(sheet: Sheet, number: int, item: Item) -> str:
    def function(title: str, first: str, body: str) -> str:
        letters = ", ".join(["rng", "draw", first, *sheet.sizes])
        return f"\n\n\ndef {title}({letters}):\n{textwrap.indent(body.strip(), '    ')}"

    name, hint = item.name, json.dumps(item.hint)
    found = function(f"check_{name}", "given", item.check)
    found += f'\n\n\ndef test_{name}():\n    """{item.title}."""\n'
    found += f'    questions.ask({number}, "{name}", check_{name}, {hint})'
    if item.own:
        found += function(f"differences_{name}", "slope", item.own)
        found += f"\n\n\ndef test_{name}_by_differences():\n    questions.differences(differences_{name}, {hint})"
    return found.strip("\n")


def expected(sheet: Sheet) -> str:
    """The text of ``tests/expected.json``: what checks are given, and what they should yield."""
    found: dict[str, Any] = {}
    solution, right = grading.module_of(texts(sheet, solved=True, alone=False).answer), grading.right(sheet)
    for item in sheet.items:
        given: list[Any] = []

        def remember(name: str, *args: Any, given: list[Any] = given, **options: Any) -> Any:
            x = right(name, *args, **options)
            given.append(values.encode(x))
            return x

        yields = grading.questions(sheet, item, vars(solution), remember, 0, 0)
        found[item.name] = {"given": given, "yields": [values.encode(x) for x in yields]}
    return json.dumps(found) + "\n"


def theory(sheet: Sheet, *, answers: bool) -> str:
    """The page of theory questions."""
    parts = [f"# {sheet.title}: questions\n"]
    for number, each in enumerate(sheet.theory, 1):
        parts.append(f"**{number}.** {each['question'].strip()}\n")
        if answers:
            parts.append(f"*Answer.* {each['answer'].strip()}\n")
    return "\n".join(parts)


def notes(sheet: Sheet) -> str:
    """How to grade, what is lost for what, and what goes wrong."""
    rows = [f"| {x.title} | {x.points:g} | {x.hint} |" for x in sheet.items]
    known = [f"- **{x.name}** ({x.item}): {x.says or 'the judge knows it'}" for x in sheet.mistakes]
    return "\n".join(
        [
            f"# Grading: {sheet.title}\n",
            f"`linattn-ref grade DIR --seed N` with a number of your own. {sheet.notes}\n",
            "| item | points | asks for |",
            "| --- | --- | --- |",
            *rows,
            f"\n{sheet.points:g} points. Items are all or nothing; `theory.md` has answers to grade by hand.\n",
            "## Mistakes that are named\n",
            *known,
            "",
        ]
    )


def write(sheet: Sheet, out: Path, *, instructor: bool = False) -> list[Path]:
    """Write the student's folder, or the instructor's; all of it or nothing.

    Raises
    ------
    FileExistsError
        Where ``out`` is there, and not an empty folder.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise FileExistsError(f"out: {out} is there already, and not an empty folder")
    found = files(sheet, instructor=instructor)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.{secrets.token_hex(8)}.part")
    temporary.mkdir()
    try:
        for name, text in found.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            (temporary / name).write_text(text, encoding="utf-8")
        atomic.move_into_place(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return [out / name for name in found]
