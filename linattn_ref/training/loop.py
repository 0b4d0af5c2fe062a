"""The training loop: :func:`step` again and again; now and then an evaluation, a line in the record, a checkpoint.

All that is random in step ``t`` is drawn from a generator made of the seed and ``t``. So a run that was stopped at any
moment, by Ctrl-C or by kill -9, goes on from its last checkpoint to the same numbers as one that never stopped.

A run that has come to its end may be lengthened: resumed with more steps, it goes on with the rates that a run of that
length has there. `linattn_ref.training.folder` says what lies in a run's folder, where one run at a time writes.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.op.options import check_flags, check_sizes, plain
from linattn_ref.op.workspace import workspace
from linattn_ref.training import adam, folder, parameters
from linattn_ref.training.checks import check_apart, check_limit, check_rate
from linattn_ref.training.clip import by_global_norm
from linattn_ref.training.failure import TrainingError, check_step, no_number

__all__ = ["Settings", "Task", "TrainingError", "Watch", "loss_and_gradients", "run", "step"]


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
    # Moves parameters, as modules of `linattn_ref.training` do: ``init_state(params)`` is the state before the first
    # step, a NamedTuple that counts its ``steps``; ``step(params, grads, state, learning_rate=...)`` returns the next
    optimiser: Any = adam
    options: Mapping[str, Any] = {}  # of its step; never written to
    accumulate: int = 1  # batches per step
    clip: float | None = None  # the largest norm of the gradient
    every: int = 100  # steps from one evaluation, and checkpoint, to the next
    seed: int = 0
    # Multiplies the rate, by the record's lines of all evaluations so far: `schedule.plateau`, for instance
    factor: Callable[[Sequence[Mapping[str, Any]]], float] = lambda lines: 1.0
    # Shortens a gradient in place to the limit ``clip``, and returns the norm that all of it had
    clipped: Callable[[Any, float], float] = by_global_norm


class Watch(NamedTuple):
    """Callbacks that follow a run."""

    steps: Callable[[Iterable[int]], Iterable[int]] = iter  # wraps the steps that are to be taken: ``tqdm.tqdm``, say
    # Called with the expected seconds in total, estimated from one step and one evaluation
    takes: Callable[[float], object] | None = None
    found: Callable[[Mapping[str, Any]], object] = lambda line: None  # told each evaluation's line of the record


UNWATCHED = Watch()


# --- A step ---------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """What a step has found."""

    loss: float
    norm: float  # of the gradient, before it was clipped
    rate: float


def step(
    task: Task,
    settings: Settings,
    t: int,
    params: Any,
    state: Any,
    lines: Sequence[Any] = (),
    early_loss: float = math.inf,
) -> tuple[Any, Step]:
    """Step ``t``, counted from 0: moves ``params`` in place, and returns the optimiser's next state.

    Parameters
    ----------
    task, settings, t : Task, Settings, int
    params, state : NamedTuple
        The parameters, and the optimiser's state.
    lines : sequence of dict
        The record's lines of all evaluations so far.
    early_loss : float
        The mean training loss up to the first evaluation; before it, the first loss.

    Raises
    ------
    TrainingError
        The loss or its gradient is NaN or infinite, or exploded; nothing is moved then.
    """
    loss, grads = loss_and_gradients(task, settings, t, params)
    norm = settings.clipped(grads, math.inf if settings.clip is None else settings.clip)
    check_step(t, loss, norm, early_loss, params, grads, _saved(task, settings, t, params))
    rate = settings.learning_rate(t) * settings.factor(lines)
    state = settings.optimiser.step(params, grads, state, learning_rate=rate, **settings.options)
    return state, Step(loss, norm, rate)


def loss_and_gradients(task: Task, settings: Settings, t: int, params: Any) -> tuple[float, Any]:
    """The loss of step ``t``, the mean over all that its batches have, and its gradient."""
    rng = np.random.default_rng([settings.seed, t])
    batches = [task.batch(rng) for _ in range(settings.accumulate)]
    counts = [1.0 if task.weigh is None else task.weigh(batch) for batch in batches]
    whole, losses, total = math.fsum(counts), [], None
    for batch, count in zip(batches, counts, strict=True):
        loss, grads = task.learn(params, batch, count / whole)
        losses.append(loss)
        total = grads if total is None else parameters.add(total, grads)
    return math.fsum(losses), parameters.tied(params, total)


def _saved(task: Task, settings: Settings, t: int, params: Any) -> Iterator[Any]:
    """What the forward pass of each batch of a step that failed saves, if the task tells."""
    rng = np.random.default_rng([settings.seed, t])
    if task.look is not None:
        for _ in range(settings.accumulate):
            yield task.look(params, task.batch(rng))


# --- All steps ------------------------------------------------------------------------------------------------------


@np.errstate(over="ignore", invalid="ignore")  # each loss and each norm is looked at: what fails is told once, named
def run(
    task: Task,
    params: Any,
    settings: Settings,
    out: Path,
    *,
    facts: Mapping[str, Any],
    resume: bool = False,
    watch: Watch = UNWATCHED,
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
    watch : Watch

    Raises
    ------
    ValueError
        ``resume`` with the checkpoint of another model, a damaged one, or one of other ``facts``, or with a record that
        does not reach to the checkpoint; or without it, where there is a checkpoint. Or another run writes in ``out``.
    TrainingError
        A loss or gradient that is NaN or infinite, or a loss above ten times the early one (or above 10, if that is
        larger): the step and the layer are named.
    OSError
        A file cannot be written; the last checkpoint stays.
    """
    settings = Settings(*map(plain, settings))
    check_flags(resume=resume)
    check_sizes(steps=settings.steps, accumulate=settings.accumulate, every=settings.every)
    check_rate(learning_rate=settings.learning_rate(0))
    if settings.clip is not None:
        check_limit(clip=settings.clip)
    with folder.alone(out), workspace():
        _, params = parameters.flatten(params)  # a copy
        state = settings.optimiser.init_state(params)
        log = folder.begun(out, params, state, _plain(facts), settings.steps, resume=resume)
        state, spent = state._replace(steps=log.step), log.seconds
        losses: list[float] = []  # since the last evaluation
        if log.step < settings.steps:
            _rehearse(task, settings, log.step, params)
            if watch.takes is not None:
                watch.takes(_expected(task, settings, log.step, params))
        for t in watch.steps(range(log.step, settings.steps)):
            start, lines, evaluated = time.process_time(), log.lines[1:], None
            early_loss = lines[0]["training_loss"] if lines else losses[0] if losses else math.inf
            try:
                state, found = step(task, settings, t, params, state, lines, early_loss)
                spent += time.process_time() - start
                if (t + 1) % settings.every == 0 or t + 1 == settings.steps:
                    evaluated = _evaluated(task, settings, t, params)
            except TrainingError as error:
                raise TrainingError(f"{error}; {log.kept}") from None
            losses.append(found.loss)
            if evaluated is not None:
                line = {"step": t + 1, "training_loss": float(np.mean(losses)), "rate": found.rate, "norm": found.norm}
                log = folder.add(out, log, params, state, _plain({**line, **evaluated}), spent)
                watch.found(log.lines[-1])
                losses = []
        return params


def _rehearse(task: Task, settings: Settings, t: int, params: Any) -> None:
    """Take a step on copies, before the clock: Numba compiles in it."""
    _, grads = loss_and_gradients(task, settings, t, params)
    check_apart("grads", grads, params)
    _, copies = parameters.flatten(params)
    state = settings.optimiser.init_state(params)
    settings.optimiser.step(copies, grads, state, learning_rate=0.0, **settings.options)


def _expected(task: Task, settings: Settings, t: int, params: Any) -> float:
    """Seconds that steps and evaluations from ``t`` on will take, by one of each."""
    start = time.perf_counter()
    _rehearse(task, settings, t, params)
    stepped = time.perf_counter()
    task.evaluate(params)
    left = settings.steps - t
    return left * (stepped - start) + math.ceil(left / settings.every) * (time.perf_counter() - stepped)


def _evaluated(task: Task, settings: Settings, t: int, params: Any) -> dict[str, float]:
    found = task.evaluate(params)
    if not math.isfinite(found["loss"]):
        raise no_number(t + 1, "the loss of the evaluation", found["loss"], params, _saved(task, settings, t, params))
    return found


def _plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON gives it back: tuples are lists."""
    return json.loads(json.dumps(dict(facts), default=float))
