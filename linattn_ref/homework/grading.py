"""Points: each item is asked of the submission and of the solution, and compared; what is wrong is looked for by name.

An item has several trials, each with numbers and sizes of its own. Where it is wrong, the solution is run with each
mistake that the sheet knows, to see which one gives this answer; the judge (`linattn_ref.conform`) adds what it finds.
Each error costs points once: an item whose only fault is to build on an earlier, wrong function gets its points.
"""

import contextlib
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.conform.checks import CHECKS
from linattn_ref.conform.report import FAILED, RAISED
from linattn_ref.conform.run import run_check
from linattn_ref.conform.target import Target
from linattn_ref.homework.apart import Failed, one_line
from linattn_ref.homework.checking import flatten, off
from linattn_ref.homework.pages import mistaken, texts
from linattn_ref.homework.sheet import Item, Mistake, Sheet
from linattn_ref.homework.values import decode, finder, within

__all__ = ["Result", "blaming", "grade", "module_of", "questions", "solution"]

TOLERANCE = 1e-4  # of the largest number of an array: float32 is enough, on questions of this size


class Result(NamedTuple):
    """An item, graded."""

    item: Item
    points: float
    why: str = ""  # what is wrong
    named: tuple[str, ...] = ()  # mistakes, by name
    says: tuple[str, ...] = ()  # and in words


def module_of(text: str) -> ModuleType:
    """A module with this text."""
    module = ModuleType("answer")
    exec(compile(text, "answer.py", "exec", dont_inherit=True), module.__dict__)
    return module


@contextlib.contextmanager
def blaming(sheet: Sheet, part: str) -> Iterator[None]:
    """Any error in here is the fault of this part of a sheet, and no student's."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{sheet.file}, {part}: {type(error).__name__}: {error}") from error


@functools.cache
def solution(sheet: Sheet, mistake: Mistake | None = None) -> ModuleType:
    """The solution as a module, perhaps with a mistake."""
    text = mistaken(sheet, mistake) if mistake else texts(sheet, solved=True, alone=False).answer
    with blaming(sheet, mistake.name if mistake else "the solution"):
        return module_of(text)


def questions(
    sheet: Sheet, item: Item, names: dict[str, Any], given: Callable[..., Any], seed: int, trial: int
) -> list[Any]:
    """What the check of an item yields; seed 0 and trial 0 are the handout's, with its sizes."""
    rng = np.random.default_rng([seed, sheet.items.index(item), trial])
    sizes = {**sheet.sizes, **(larger(sheet.sizes, np.random.default_rng([seed, trial])) if seed else {})}
    data = np.float64(np.load(sheet.file.with_name(sheet.data))) if sheet.data else None
    code = f"def check({', '.join(['rng', 'draw', 'given', *sizes])}):\n{textwrap.indent(item.check.strip(), '    ')}"
    space = {"np": np, "data": data, **names}
    exec(compile(code, f"the check of {item.name}", "exec", dont_inherit=True), space)
    return list(space["check"](rng=rng, draw=lambda *shape: rng.standard_normal(shape), given=given, **sizes))


def larger(sizes: dict[str, int], rng: np.random.Generator) -> dict[str, int]:
    """Other sizes for the letters, no two of them equal."""
    found: dict[str, int] = {}
    for name, n in ((name, n) for name, n in sizes.items() if name.isupper()):
        free = [x for x in range(n + 1, n + 6) if x not in found.values()] or [max(found.values()) + 1]
        found[name] = int(rng.choice(free))
    return found


@functools.cache
def expected(sheet: Sheet, number: int, seed: int, trial: int, mistake: Mistake | None = None) -> Any:
    """What the solution answers; with a mistake that makes it raise an error, that error."""
    names, item = vars(solution(sheet, mistake)), sheet.items[number]
    try:
        with np.errstate(all="ignore"), blaming(sheet, item.name):
            limited = {name: within(item.peak, names[name]) for name in item.functions}
            return questions(sheet, item, names | limited, right(sheet), seed, trial)
    except ValueError as error:
        if mistake is None:
            raise
        return error.__cause__


def right(sheet: Sheet) -> Callable[..., Any]:
    """What ``given`` is in a check: a function of the solution, called."""
    return lambda name, *args, **options: getattr(solution(sheet), name)(*args, **options)


def proxy(sheet: Sheet, submission: Any, name: str) -> Callable[..., Any]:
    """A function of the submission, that looks like the solution's."""
    module = solution(sheet)
    find, function = finder(lambda: [module]), getattr(module, name)
    dropped = {x for part in sheet.parts for x in part.drop}

    def asked(*args: Any, **options: Any) -> Any:
        return decode(submission.call(name, args, options), find)

    return without(asked, dropped, inspect.signature(function))


def without(function: Callable[..., Any], names: Iterable[str], signature: inspect.Signature) -> Callable[..., Any]:
    """The function with a signature that does not have these options."""
    kept = [x for x in signature.parameters.values() if x.name not in names]
    function.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return function


def grade(sheet: Sheet, submission: Any, *, seed: int = 1) -> tuple[Result, ...]:
    """Grade all items.

    Parameters
    ----------
    sheet : Sheet
    submission : Apart
    seed : int
        Of the numbers and sizes; from 1 on, since 0 is the handout's.

    Returns
    -------
    tuple of Result
        The same whenever seed and submission are the same.
    """
    if seed < 1:
        raise ValueError(f"seed: expected a number of at least 1, got {seed}")
    for mistake in sheet.mistakes:  # one that cannot be planted is no fault of the student's
        solution(sheet, mistake)
    proxies = {name: proxy(sheet, submission, name) for name in sheet.functions}
    results = list[Result]()
    for number, item in enumerate(sheet.items):
        right_answers = [expected(sheet, number, seed, trial) for trial in range(item.trials)]
        submission.begin(item.peak)
        try:
            results.append(graded(sheet, item, proxies, seed, right_answers, [x for x in results if not x.points]))
        except Failed as error:
            known = [x for x in sheet.mistakes if item.peak and x.item == item.name and "MemoryError" in str(error)]
            fits = [x for x in known if isinstance(expected(sheet, number, seed, 0, x), MemoryError)]
            results.append(Result(item, 0.0, str(error), *named(fits)))
        except Exception as error:  # the check met something that it did not expect
            why = f"what came back is not what was asked for ({type(error).__name__}: {error})"
            results.append(Result(item, 0.0, one_line(why)))
    return tuple(results)


def graded(
    sheet: Sheet, item: Item, proxies: dict[str, Any], seed: int, right_answers: list[Any], lost: list[Result]
) -> Result:
    """One item; ``lost`` are the earlier ones without points."""
    number, names = sheet.items.index(item), {**vars(solution(sheet)), **proxies}
    answers = [questions(sheet, item, names, right(sheet), seed, trial) for trial in range(item.trials)]
    found = [off(got, asked, TOLERANCE) for got, asked in zip(answers, right_answers, strict=True)]
    why = next(filter(None, found), "")
    if not why:
        return judged(sheet, item, proxies, seed)
    for x in (x for x in sheet.mistakes if any(x.name in each.named for each in lost)):
        if fits_mistake(sheet, number, seed, answers, x):
            return Result(item, item.points, f"the mistake {x.name} again, which has cost points already")
    wrong = sorted({name for each in lost for name in each.item.functions} - {*item.functions})
    if wrong and (theirs := follows(sheet, item, proxies, seed, wrong, answers)):
        return Result(item, item.points, f"right, given your {' and '.join(theirs)}, where points are lost already")
    fits = [x for x in sheet.mistakes if x.item == item.name and fits_mistake(sheet, number, seed, answers, x)]
    if fits:
        return Result(item, 0.0, why, *named(fits))
    by_judge = judged(sheet, item, proxies, seed)
    return Result(item, 0.0, why, by_judge.named, by_judge.says or general(answers, right_answers))


def judged(sheet: Sheet, item: Item, proxies: dict[str, Any], seed: int) -> Result:
    """The judge's checks: of a forward pass, or of a backward pass behind the solution's forward pass."""
    asked = proxies[item.functions[0]]

    def output(*args: Any, **options: Any) -> Any:
        found = asked(*args, **options)
        return found[0] if isinstance(found, tuple) else found  # what is saved is the student's business

    target: Any = without(output, item.hide, inspect.signature(asked))
    if item.behind:
        target = getattr(solution(sheet), item.behind), asked
    for name in item.checks if item.judge else ():
        outcome = run_check(CHECKS[name], Target.of(target, item.judge, "float32"), seed)
        if outcome.verdict in (FAILED, RAISED):
            return Result(item, 0.0, outcome.where, outcome.named, outcome.diagnosis)
    return Result(item, item.points)


def follows(sheet: Sheet, item: Item, proxies: Any, seed: int, wrong: list[str], answers: list[Any]) -> list[str]:
    """The student's functions, of those that were wrong, with which the solution gives this answer; or none.

    An answer that is 0 everywhere, or has a NaN or infinity, follows from nothing, nor does one from a function whose
    arrays are of one number each: it would be right too easily.
    """
    module = module_of(texts(sheet, solved=True, alone=False).answer)
    called, constant = set[str](), set[str]()

    def noted(name: str) -> Callable[..., Any]:
        def function(*args: Any, **options: Any) -> Any:
            called.add(name)
            found = proxies[name](*args, **options)
            arrays = [x for _, x in flatten([found]) if x.size > 1]
            if arrays and all((x == x.flat[0]).all() for x in arrays):
                constant.add(name)
            return found

        return function

    vars(module).update({name: noted(name) for name in wrong})
    try:
        for trial, got in enumerate(answers):
            asked = questions(sheet, item, vars(module), right(sheet), seed, trial)
            numbers = [x for _, x in flatten(asked)]
            meant = any(x.any() for x in numbers) and all(np.isfinite(x).all() for x in numbers)
            if off(got, asked, TOLERANCE) or not meant:
                return []
    except Exception:
        return []
    return [] if called & constant else sorted(called)


def fits_mistake(sheet: Sheet, number: int, seed: int, answers: list[Any], mistake: Mistake) -> bool:
    """Whether the answer is that of the solution with this mistake, in every trial."""
    pairs = [(got, expected(sheet, number, seed, trial, mistake)) for trial, got in enumerate(answers)]
    return all(not isinstance(x, Exception) and not off(got, x, 10 * TOLERANCE) for got, x in pairs)


def named(mistakes: list[Mistake]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Their names, and what the student is told."""
    return tuple(x.name for x in mistakes), tuple(x.says for x in mistakes if x.says)


def general(answers: list[Any], theirs: list[Any]) -> tuple[str, ...]:
    """What can be said of any numbers: zeros, another sign, a factor."""
    got, asked = ([x for _, x in flatten(trials)] for trials in (answers, theirs))
    if [x.shape for x in got] != [x.shape for x in asked] or not all(np.isfinite(x).all() for x in (*got, *asked)):
        return ()
    if not any(x.any() for x in asked):
        return ()
    if not any(x.any() for x in got):
        return ("it is 0 everywhere",)
    pairs = [(x, y) for x, y in zip(got, asked, strict=True) if x.any() or y.any()]
    with np.errstate(over="ignore", invalid="ignore"):
        factor = float(sum((x * y).sum() for x, y in pairs) / sum((y * y).sum() for _, y in pairs))
    if not np.isfinite(factor) or any(abs(x - factor * y).max() > 10 * TOLERANCE * abs(y).max() for x, y in pairs):
        return ()
    if abs(factor - 1) < 1e-3:
        return ("it is right to about three digits: something small is missing, or it is computed with too few",)
    return ("it has the wrong sign" if abs(factor + 1) < 1e-3 else f"it is {factor:.4g} times what it should be",)
