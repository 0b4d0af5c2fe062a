"""The folder that a student gets, and what an instructor gets beside it."""

import json
import secrets
import shlex
import textwrap
from pathlib import Path
from typing import Any

from linattn_ref import atomic
from linattn_ref.homework import checking, grading, values
from linattn_ref.homework.apart import ALL, IMPORTING, PATIENCE
from linattn_ref.homework.pages import texts
from linattn_ref.homework.sheet import Item, Sheet, template

__all__ = ["files", "write"]


def files(sheet: Sheet, *, instructor: bool = False) -> dict[str, bytes]:
    """The files of a folder by name: the student's, or the instructor's, with a seed that nobody else knows."""
    written = texts(sheet, solved=instructor)
    found = {"answer.py": written.answer, **{f"given/{name}.py": text for name, text in written.given.items()}}
    if instructor:
        found = {f"solution/{name}": text for name, text in found.items()}
        found["GRADING.md"] = notes(sheet)
        found["discussion.md"] = "\n".join(["# Questions for the class\n", *(f"- {x}" for x in sheet.discussion), ""])
        found[f"grader/{sheet.file.name}"] = sheet.file.read_text(encoding="utf-8")
        for name in ("run_autograder", "setup.sh"):
            text = template(name).replace("SEED", str(1 + secrets.randbelow(10**9)))
            found[f"grader/{name}"] = text.replace("SHEET", shlex.quote(sheet.file.name))
    else:
        found["README.md"] = readme(sheet)
        found["tests/test_answer.py"], found["tests/expected.json"] = tests(sheet), expected(sheet)
        for module in (checking, values):
            path = Path(str(module.__file__))
            found[f"tests/{path.name}"] = path.read_text(encoding="utf-8").replace("linattn_ref.homework.", "")
    found["theory.md"] = theory(sheet, answers=instructor)
    all_files = {name: text.encode() for name, text in found.items()}
    for folder in (["solution/given", "grader"] if instructor else ["given"]) if sheet.data else []:
        all_files[f"{folder}/{sheet.data}"] = sheet.file.with_name(sheet.data).read_bytes()
    return all_files


JUDGED = """
In some items a second program calls the same functions, and has to find nothing wrong either. It allows less: eight
times the error that rounding to float32 causes in the formula itself."""


def readme(sheet: Sheet) -> str:
    items = "\n".join(f"| {x.title}{limit(x)} | `{'`, `'.join(x.functions)}` | {x.points:g} |" for x in sheet.items)
    said = vars(sheet) | {"goals": "\n".join(f"- {x}" for x in sheet.goals), "items": items}
    said["libraries"] = "NumPy, PyTorch, JAX or Triton" if sheet.arrays else "NumPy"
    said["note"] = template("libraries.md") if sheet.arrays else ""
    said["judged"] = JUDGED * any(item.judge for item in sheet.items)
    return template("README.md").format(
        tolerance=grading.TOLERANCE, importing=IMPORTING, all=ALL, patience=PATIENCE, **said
    )


def limit(item: Item) -> str:
    return f", with at most {item.peak:g} KiB at once" if item.peak else ""


def tests(sheet: Sheet) -> str:
    """The text of ``tests/test_answer.py``."""
    kept = [part.rename.get(name, name) for part in sheet.parts for name in part.keep if "." not in name]
    names = [f"{name} = answer.{name}" for name in kept]
    names += [f'{name} = questions.wrapped("{name}")' for name in sheet.functions]
    names += [f'data = np.float64(np.load(HERE.parent / "given" / "{sheet.data}"))'] if sheet.data else []
    parts = [test(sheet, number, item) for number, item in enumerate(sheet.items)]
    return template("test_answer.txt").format(
        names="\n".join(names), sizes=sheet.sizes, allowed=sheet.arrays, tests="\n".join(parts).strip("\n")
    )


def test(sheet: Sheet, number: int, item: Item) -> str:
    said = vars(item) | {"number": number, "letters": ", ".join(sheet.sizes), "hint": json.dumps(item.hint)}
    said |= {name: textwrap.indent(said[name].strip(), "    ") for name in ("check", "own")}
    return template("check.txt").format(**said) + (template("own.txt").format(**said) if item.own else "")


def expected(sheet: Sheet) -> str:
    """The text of ``tests/expected.json``: what checks are given, and what they should yield."""
    found: dict[str, Any] = {}
    solution, right = grading.solution(sheet), grading.right(sheet)
    for item in sheet.items:
        given: list[Any] = []

        def remember(name: str, *args: Any, given: list[Any] = given, **options: Any) -> Any:
            x = right(name, *args, **options)
            given.append(values.encode(x))
            return x

        with grading.blaming(sheet, item.name):
            yields = grading.questions(sheet, item, vars(solution), remember, 0, 0)
        found[item.name] = {"given": given, "yields": [values.encode(x) for x in yields]}
    return values.dumps(found) + "\n"


def theory(sheet: Sheet, *, answers: bool) -> str:
    """The page of theory questions."""
    parts = [f"# {sheet.title}: questions\n"]
    for number, each in enumerate(sheet.theory, 1):
        parts.append(f"**{number}.** {each.question.strip()}\n")
        if answers:
            parts.append(f"*Answer.* {each.answer.strip()}\n")
    return "\n".join(parts)


def notes(sheet: Sheet) -> str:
    """How to grade, what is lost for what, and what goes wrong."""
    items = "\n".join(f"| {x.title}{limit(x)} | {x.points:g} | {x.hint} |" for x in sheet.items)
    known = "\n".join(f"- **{x.name}** ({x.item}): {x.says or 'the judge names it'}" for x in sheet.mistakes)
    said = vars(sheet) | {"items": items, "mistakes": known, "file": sheet.file.name}
    return template("GRADING.md").format(points=sheet.points, **said)


def write(sheet: Sheet, out: Path, *, instructor: bool = False) -> list[Path]:
    """Write the student's folder, or the instructor's.

    Raises
    ------
    FileExistsError
        ``out`` already exists and is not an empty folder.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise FileExistsError(f"out: {out} already exists and is not an empty folder")
    return atomic.write_all({out / name: x for name, x in files(sheet, instructor=instructor).items()})
