"""The training loop: batches, gradients, a step; now and then an evaluation, a line in the record, a checkpoint.

All that is random in step ``t`` is drawn from a generator made of the seed and ``t``. So a run that was stopped at any
moment, by Ctrl-C or by kill -9, goes on from its last checkpoint to the same numbers as one that never stopped.

A run that has come to its end may be lengthened: resumed with more steps, it goes on with the rates that a run of that
length has there. `linattn_ref.training.folder` says what lies in a run's folder, where one run at a time writes.
"""

from __future__ import annotations

import json
import math
import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.op import Array
from linattn_ref.op.options import check_sizes, plain
from linattn_ref.op.workspace import workspace
from linattn_ref.training import adam, checkpoint, clip, folder, parameters
from linattn_ref.training.checks import check_rate
from linattn_ref.training.folder import BEST, LAST, RECORD, RESULT, TIMES, check_folder, read_record, read_times

__all__ = [
    "BEST",
    "LAST",
    "RECORD",
    "RESULT",
    "TIMES",
    "Settings",
    "Task",
    "TrainingError",
    "check_folder",
    "read_record",
    "read_times",
    "run",
]

EXPLODED = 10.0  # times the first loss


class TrainingError(RuntimeError):
    """A loss or a gradient that is no number any more, or a loss that exploded. Checkpoints are of the time before."""


class Trees(NamedTuple):
    """The arrays of a checkpoint."""

    params: Any
    state: Any  # the optimiser's


class Task(NamedTuple):
    """What is to be learned. None of the functions keeps anything between its calls."""

    # A batch's share of the loss, and the gradient of that: (params, batch, share) -> loss, gradients of params
    learn: Callable[[Any, Any, float], tuple[float, Any]]
    batch: Callable[[np.random.Generator], Any]
    evaluate: Callable[[Any], dict[str, float]]  # params -> numbers, of which "loss" is to become small
    # What a forward pass saves, in the order of its layers: (params, batch) -> NamedTuple. Asked when a run fails.
    look: Callable[[Any, Any], Any] | None = None
    # How many things the loss of a batch is the mean of; without it all batches count the same.
    weigh: Callable[[Any], float] | None = None


class Settings(NamedTuple):
    """How it is learned."""

    steps: int
    learning_rate: Callable[[int], float]  # of a step, counted from 0
    optimiser: ModuleType = adam  # one of `linattn_ref.training`, with init_state and step
    options: Mapping[str, Any] = {}  # of its step  # never written to
    accumulate: int = 1  # batches a step
    clip: float | None = None  # the largest norm of the gradient
    clip_each: bool = False  # of each array's by itself
    every: int = 100  # steps from one evaluation, and checkpoint, to the next
    seed: int = 0
    # Multiplies the rate, by the record's lines of all evaluations so far: `schedule.plateau`, for instance
    factor: Callable[[Sequence[Mapping[str, Any]]], float] = lambda lines: 1.0
    # Arrays with a rate of their own, and its ratio to the others': (params) -> [(array, ratio)]
    own_rates: Callable[[Any], Sequence[tuple[Array, float]]] = lambda params: ()


@np.errstate(over="ignore", invalid="ignore")  # each loss and each norm is looked at: what fails is told once, named
def run(
    task: Task,
    params: Any,
    settings: Settings,
    out: Path,
    *,
    facts: Mapping[str, Any],
    resume: bool = False,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Any:
    """Train, and return the parameters after the last step.

    Parameters
    ----------
    task : Task
    params : NamedTuple
        Where to start: the structure of the parameters and their first values, which are copied.
    settings : Settings
    out : Path
        The folder of the run; made if it is not there. No other run may write there at the same time.
    facts : mapping
        What the record says first: the command and all that the numbers depend on. To resume, all but the command has
        to be the same; a run that has come to its end may have more ``steps``, which are then added to its record with
        the command.
    resume : bool
        Go on from the last checkpoint in ``out``; from the beginning, if there is none. Without it, a folder that has
        one is left as it is.
    progress : callable
        Wraps the steps that are to be taken: ``tqdm.tqdm``, say.

    Raises
    ------
    ValueError
        ``resume`` with the checkpoint of another model, a damaged one, or one of other ``facts``, or with a record that
        does not reach to the checkpoint; or without it, where there is a checkpoint. Or another run writes in ``out``.
    TrainingError
        A number that is none, or a loss more than ten times the first: the step and the layer are named.
    OSError
        A file cannot be written; the last checkpoint stays.
    """
    settings = Settings(*map(plain, settings))
    check_sizes(steps=settings.steps, accumulate=settings.accumulate, every=settings.every)
    check_rate(learning_rate=settings.learning_rate(0))
    with folder.alone(out), workspace():
        folder.check_files(out, resume=resume)
        return _run(task, params, settings, out, facts, resume, progress)


def _run(
    task: Task,
    params: Any,
    settings: Settings,
    out: Path,
    facts: Mapping[str, Any],
    resume: bool,
    progress: Callable[[Iterable[int]], Iterable[int]],
) -> Any:
    _, params = parameters.flatten(params)  # a copy
    state, first, best = settings.optimiser.init_state(params), 0, math.inf
    lines: list[dict[str, Any]] = [{"facts": _plain(facts)}]
    times: list[dict[str, Any]] = []
    if resume and (out / LAST).exists():
        found = checkpoint.load(out / LAST)
        earlier, first, best = _how_far(out / LAST, found.facts)
        said = folder.earlier_facts(out, earlier, lines[0]["facts"], first)
        if first > settings.steps:
            raise ValueError(f"steps: the run in {out} has come to step {first} already, got {settings.steps}")
        checkpoint.restore(params, found, "params")
        checkpoint.restore(state, found, "state")
        state = state._replace(steps=first)
        evaluations, times = folder.lines_until(out, first)
        lines = [{"facts": said}, *evaluations]
        if said != earlier:  # lengthened: what was measured in the end is of fewer steps
            (out / RESULT).unlink(missing_ok=True)
    folder.write_lines(out, lines, times)

    losses, spent = [], folder.seconds_of(times)
    if first < settings.steps:  # Numba compiles in the first step: it is taken once on copies, before the clock
        _, grads = _gradient(task, params, settings, first)
        _, copies = parameters.flatten(params)
        settings.optimiser.step(
            copies, grads, settings.optimiser.init_state(params), learning_rate=0.0, **settings.options
        )
        del grads, copies
    for step in progress(range(first, settings.steps)):
        begun = time.process_time()
        loss, grads = _gradient(task, params, settings, step)
        losses.append(loss)
        norm = clip.by_global_norm(grads, math.inf if settings.clip_each else settings.clip or math.inf)
        usual = lines[1]["training_loss"] if lines[1:] else losses[0]
        if not math.isfinite(losses[-1] + norm) or losses[-1] > EXPLODED * max(abs(usual), 1.0):
            raise TrainingError(_what_failed(task, settings, step, losses[-1], usual, params, grads) + _kept(lines))
        if settings.clip_each:
            clip.each(grads, settings.clip or math.inf)
        rate = settings.learning_rate(step) * settings.factor(lines[1:])
        before = [(array, array.copy(), ratio) for array, ratio in settings.own_rates(params)]
        state = settings.optimiser.step(params, grads, state, learning_rate=rate, **settings.options)
        for array, old, ratio in before:  # a step at a tenth of the rate is a tenth of the step
            array[...] = old + array.dtype.type(ratio) * (array - old)
        spent += time.process_time() - begun
        if (step + 1) % settings.every == 0 or step + 1 == settings.steps:
            found_now = task.evaluate(params)
            if not math.isfinite(found_now["loss"]):
                failed = _what_failed(task, settings, step, found_now["loss"], usual, params, grads)
                raise TrainingError(failed + _kept(lines))
            line = {"step": step + 1, "training_loss": float(np.mean(losses)), "rate": rate, "norm": norm, **found_now}
            lines, losses = [*lines, _plain(line)], []
            better = found_now["loss"] < best
            best = min(best, found_now["loss"])
            times = [*times, {"step": step + 1, "cpu_seconds": None if math.isnan(spent) else round(spent, 3)}]
            folder.save(out, lines, times, Trees(params, state), better=better, best=best)
        del grads  # the next step makes its own
    return params


def _how_far(path: Path, said: Mapping[str, Any]) -> tuple[dict[str, Any], int, float]:
    """A checkpoint's facts, its step, and the lowest loss so far."""
    try:
        return dict(said["facts"]), operator.index(said["step"]), float(said["best"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not say how far its run had come ({error!r})") from error


def _gradient(task: Task, params: Any, settings: Settings, step: int) -> tuple[float, Any]:
    """The loss of a step, the mean over all that its batches have, and its gradient."""
    rng = np.random.default_rng([settings.seed, step])
    batches = [task.batch(rng) for _ in range(settings.accumulate)]
    counts = [1.0 if task.weigh is None else task.weigh(batch) for batch in batches]
    whole, losses, total = math.fsum(counts), [], None
    for batch, count in zip(batches, counts, strict=True):
        loss, grads = task.learn(params, batch, count / whole)
        losses.append(loss)
        total = grads if total is None else parameters.add(total, grads)
    return math.fsum(losses), parameters.tied(params, total)


def _what_failed(task: Task, settings: Settings, step: int, loss: float, usual: float, params: Any, grads: Any) -> str:
    """The step, and where it is to be looked for: the first layer whose output is no number, for instance."""
    if math.isfinite(loss) and all(_is_finite(array) for _, array in parameters.leaves(grads)):
        name = max(parameters.leaves(grads), key=lambda leaf: float(np.abs(leaf[1]).max()))[0]
        where = f"exploded, from {usual:.3g} to {loss:.3g}, and {name} has the largest gradient"
    else:
        where = f"is {loss:.3g}{_no_number(task, settings, step, params, grads)}"
    return f"step {step}: the loss {where}"


def _kept(lines: Sequence[Mapping[str, Any]]) -> str:
    """What is left of a run that fails."""
    return f"; the checkpoint of step {lines[-1]['step']} is good" if lines[1:] else "; there is no checkpoint yet"


def _no_number(task: Task, settings: Settings, step: int, params: Any, grads: Any) -> str:
    """Where it begins: a parameter, the first thing saved on the way forward, the last gradient on the way back."""
    for name, array in parameters.leaves(params):
        if not _is_finite(array):
            return f", and {name} is no number any more"
    if task.look is not None:
        saved = task.look(params, task.batch(np.random.default_rng([settings.seed, step])))
        for name, array in parameters.leaves(saved, strict=False):
            if array.dtype.kind == "f" and not (array < np.inf).all():  # -inf is what a query that sees nothing has
                return f", and {name} is the first that is no number on the way forward"
    wrong = [name for name, array in parameters.leaves(grads) if not _is_finite(array)]
    return f", and the gradient of {wrong[-1]} is the first that is no number on the way back" if wrong else ""


def _is_finite(array: Array) -> bool:
    return bool(np.isfinite(array).all())


def _plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON gives it back: tuples are lists."""
    return json.loads(json.dumps(dict(facts), default=float))
