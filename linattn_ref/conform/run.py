"""Run the checks of a target: here, or in a process of its own that is ended where a check hangs."""

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from linattn_ref.conform.arrays import DTYPES
from linattn_ref.conform.budget import allowed
from linattn_ref.conform.checks import CHECKS, Check
from linattn_ref.conform.diagnosis import FITS, diagnose
from linattn_ref.conform.judge import Judge, Place, Trial, compare
from linattn_ref.conform.questions import PAIRS, rounded
from linattn_ref.conform.report import FAILED, HUNG, NOT_OFFERED, PASSED, RAISED, Outcome, Report
from linattn_ref.conform.target import Mapping, NotATarget, Target, load
from linattn_ref.op.options import check_flags

__all__ = ["check", "names_of", "run_apart", "run_check"]

NAMED = 3  # the most mistakes that an outcome names
IMPORTING = 120.0  # seconds that a target may take to be imported


def names_of(op: str, only: tuple[str, ...] = ()) -> list[str]:
    """The checks of an operation, or those of these names."""
    found = [name for name, each in CHECKS.items() if op in each.ops]
    for name in only:
        if name not in found:
            raise NotATarget(f"only: expected checks of {op} ({', '.join(found)}), got {name!r}")
    return [name for name in found if not only or name in only]


def check(
    target: Any,
    op: str,
    *,
    dtype: str = "float32",
    mapping: Mapping | None = None,
    only: tuple[str, ...] = (),
    full: bool = False,
    seed: int = 0,
) -> Report:
    """Judge a kernel.

    Parameters
    ----------
    target : callable, pair of callables, or module
        What is judged; see `linattn_ref.conform.target`.
    op : {"softmax", "linear", "gated_linear", "delta", "gated_delta"}
        What it computes.
    dtype : {"float64", "float32", "float16", "bfloat16"}
        Dtype of the inputs.
    mapping : Mapping, optional
        How it wants to be called, where it differs from a page.
    only : tuple of str
        Names of checks; all by default.
    full : bool
        Whether more sizes are asked.
    seed : int
        Seed of the inputs.

    Returns
    -------
    Report
        True if everything that is offered passes, also if nothing is offered.

    Raises
    ------
    NotATarget
        Nothing can be run.
    """
    check_flags(full=full)
    asked = Target.of(target, op, dtype, mapping)
    outcomes = tuple(run_check(CHECKS[name], asked, seed, full) for name in names_of(op, only))
    name = str(getattr(target, "__name__", None) or getattr(asked.forward, "__name__", "target"))
    return Report(name, op, dtype, outcomes)


def run_check(each: Check, target: Target, seed: int = 0, full: bool = False) -> Outcome:
    """One check of a target."""
    built_in = [name for name, x in (("causal", True), ("normalise", False)) if target.mapping.fixed.get(name) is x]
    lacks = [need for need in each.needs if need not in built_in and not target.offers(need)]
    if lacks:
        return Outcome(each.name, each.why, NOT_OFFERED, where=f"no {', '.join(lacks)}")
    judge, places = Judge(target, seed, full), list[Place]()
    by_token, wrong = list[tuple[str, tuple[float, ...]]](), None
    try:
        for trial in each.run(judge):
            places += trial.places
            by_token += [(f"{trial.note} {x.array}".strip(), x.by_token) for x in trial.places if x.by_token]
            if wrong is None and not all(place.ok for place in trial.places):
                wrong = trial
                if not each.whole:
                    break
    except Exception as error:
        if wrong is None and target.offers("gradients") and not {"gradients", "d_state"} & {*each.needs}:
            alone = run_check(each, target._replace(forward_alone=True), seed, full)
            if alone.verdict in (PASSED, FAILED):  # what can be judged is
                return alone._replace(where=f"{alone.where}; without gradients, which raised: {told(error)}")
        if wrong is None and isinstance(error, NotImplementedError):
            return Outcome(each.name, each.why, NOT_OFFERED, where=told(error))
        if wrong is None:
            way = tuple(line for frame in frames_of(error).format() for line in frame.rstrip().split("\n"))
            return Outcome(each.name, each.why, RAISED, where=told(error), traceback=way)
    if wrong is not None:
        return failed(each, wrong, target, by_token)
    if not places:
        return Outcome(each.name, each.why, NOT_OFFERED, where="nothing to compare")
    if {"gradients", "d_state"} & {*each.needs} and not any(place.array.startswith("d_") for place in places):
        return Outcome(each.name, each.why, NOT_OFFERED, where="its output has no gradient: is it detached?")
    worst = max(places, key=lambda place: place.worst)
    where = f"{worst.array} {worst.trial}".strip()
    return Outcome(each.name, each.why, PASSED, worst.worst, where, by_token=tuple(by_token))


def failed(each: Check, trial: Trial, target: Target, by_token: list[Any]) -> Outcome:
    """What went wrong in a trial, and what it may be."""
    wrong = [place for place in trial.places if not place.ok]
    arrays = {place.array for place in wrong}
    found = []
    if arrays <= {*trial.right} and not any(place.blind for place in wrong):
        error = 2.0**-52 if target.dtype == "float64" else 2.0**-23
        found = diagnose(trial.question, trial.got.arrays, trial.right, arrays, error)[:NAMED]
        if not found and "out" in arrays and rows_are_multiples(trial):
            other = "denominator" if target.op in PAIRS else "scale"
            sentence = f"each row is a multiple of the right one, as with another {other}"
            several = trial.question.inputs["k"].shape[-2] > 1  # of one key every row is, whatever is wrong
            found = [("rows_off_by_a_factor", sentence, 0.0)] * several
        elif not found and "out" not in arrays and (sentence := multiples(trial, arrays)):
            found = [("gradients_off_by_a_factor", sentence, 0.0)]
        elif not found and target.dtype == "float32" and keeps_ten_bits(trial):
            found = [("products_in_tf32", "products keep 10 bits, as those of TF32 and float16 do", 0.0)]
        elif not found and (coarser := coarser_dtype(trial, target)):
            found = [(f"computes_in_{coarser}", f"it computes in {coarser}, whatever comes in", 0.0)]
    first = wrong[0]
    where = f"{trial.note + ': ' if trial.note else ''}{first}"
    sentences, names = tuple(x[1] for x in found), tuple(x[0] for x in found)
    worst = max(place.worst for place in wrong)
    return Outcome(each.name, each.why, FAILED, worst, where, sentences, names, tuple(by_token))


def rows_are_multiples(trial: Trial) -> bool:
    """Whether what is off in the output is one factor per row, which no rounding is."""
    got, right = trial.got.arrays["out"], trial.right["out"]
    size = (right * right).sum(axis=-1, keepdims=True)
    factor = (got * right).sum(axis=-1, keepdims=True) / np.where(size, size, 1)
    fits = np.linalg.norm(got - factor * right) < FITS * np.linalg.norm(got - right)
    return right.shape[-1] > 2 and bool(fits and factor[size > 0].all())  # rows of 0 are another fault


def multiples(trial: Trial, arrays: set[str]) -> str:
    """By what number each gradient that is off is multiplied, if that is all; no rounding is such a factor."""
    said = []
    for name in sorted(arrays):
        got, right = trial.got.arrays[name], trial.right[name]
        size = (right * right).sum()
        factor = (got * right).sum() / size if size else np.nan
        if right.size < 3 or not np.linalg.norm(got - factor * right) < FITS * np.linalg.norm(got - right):
            return ""
        name = name.removeprefix("d_")
        said.append(f"the gradient of {name} is {f'multiplied by {factor:.5g}' if got.any() else '0'}")
    return " and ".join(said)


def coarser_dtype(trial: Trial, target: Target) -> str:
    """The precision in which the answer would be right, if that is a coarser one, and an array has only its numbers."""
    arrays = [x for name, x in trial.got.arrays.items() if name in trial.right and x.any()]
    for dtype in DTYPES[DTYPES.index(target.dtype) + 1 :]:
        if largest_error(trial, dtype) <= 1 and any(np.array_equal(x, rounded(x, dtype)) for x in arrays):
            return dtype
    return ""


def keeps_ten_bits(trial: Trial) -> bool:
    """Whether all is off as products of TF32 are: by less than 0.002 of an array's size, and within their budget.

    And by no less either: somewhere by a hundredth of that budget, and in most places by more than float32's.
    """
    pairs = [(x, trial.right[name]) for name, x in trial.got.arrays.items() if name in trial.right]
    near = all(np.linalg.norm(x - right) < 2.0**-9 * np.linalg.norm(right) for x, right in pairs)
    if not near or not 0.01 <= largest_error(trial, "tfloat32") <= 1:
        return False
    budget = allowed(trial.question, trial.right, "float32")
    beyond = [abs(x - trial.right[name]) > budget[name] for name, x in trial.got.arrays.items() if name in budget]
    return bool(np.mean(np.concatenate([x.ravel() for x in beyond])) > 0.5)


def largest_error(trial: Trial, dtype: str) -> float:
    """The largest of all arrays, in units of what an answer in this precision may be off by."""
    budget = allowed(trial.question, trial.right, dtype)
    arrays = ((name, x) for name, x in trial.got.arrays.items() if name in budget)
    return max((compare("", name, x, trial.right[name], budget[name]).worst for name, x in arrays), default=np.inf)


def told(error: Exception) -> str:
    """An error in one line, with where it comes from."""
    frames = frames_of(error)
    line = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{line} ({frames[-1].filename}:{frames[-1].lineno})" if frames else line


def frames_of(error: Exception) -> traceback.StackSummary:
    """From the target's own function on, without our own part of the way, and without that of an import."""
    ours, frames = Path(__file__).parent, traceback.extract_tb(error.__traceback__)
    theirs = [x for x in frames if Path(x.filename).parent != ours and "importlib" not in x.filename]
    return traceback.StackSummary.from_list(theirs)


def run_apart(
    text: str, op: str, dtype: str, mapping: Mapping, names: list[str], *, full: bool, seed: int, timeout: float
) -> Iterator[Outcome]:
    """The outcomes, one by one, of a target named as on the command line, from another process.

    Raises
    ------
    NotATarget
        The target cannot be imported, or not be called as the mapping says.
    """
    left = [*names]
    spawn = multiprocessing.get_context("spawn")
    while left:
        here, there = spawn.Pipe()
        child = spawn.Process(target=work, args=(there, text, op, dtype, mapping, left, full, seed))
        child.start()
        there.close()
        try:
            first = heard(here, child, max(timeout, IMPORTING))  # that the target is there
            if first is not None:
                told = f"no answer after {max(timeout, IMPORTING):g} s" if first == HUNG else first
                raise first if isinstance(first, NotATarget) else NotATarget(f"target: {told} while it was imported")
            for name in [*left]:
                outcome = heard(here, child, timeout)
                left.remove(name)
                if isinstance(outcome, str):
                    hung = f"no answer after {timeout:g} s (--timeout)" if outcome == HUNG else outcome
                    yield Outcome(name, CHECKS[name].why, HUNG if outcome == HUNG else RAISED, where=hung)
                    break  # and on with another process
                yield outcome
        finally:
            end(child)


def end(child: Any) -> None:
    """Kill a process that is in `work`, and those that it has started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):  # no group yet, or nobody alive in it
            os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    child.join()


def heard(pipe: Any, child: Any, patience: float) -> Any:
    """What the other process sends; in words, why there is nothing."""
    try:
        return pipe.recv() if pipe.poll(patience) else HUNG
    except EOFError:
        child.join()
        return f"the process ended with exit status {child.exitcode}"


def work(pipe: Any, text: str, op: str, dtype: str, mapping: Mapping, names: list[str], full: bool, seed: int) -> None:
    """In the other process: say whether the target can be called, then the outcome of each check."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    try:
        target = Target.of(load(text), op, dtype, mapping)
    except NotATarget as error:
        return pipe.send(error)
    except Exception as error:
        return pipe.send(NotATarget(f"target: {told(error)}"))
    pipe.send(None)
    for name in names:
        pipe.send(run_check(CHECKS[name], target, seed, full))
