"""How a task is learned, which is the same for all: begun in a folder, resumed, recorded, measured in the end.

    learned = learn.run(duplication.begin, Path("out/copy"), attention="linear", steps=1000)

What is special to a task is in its module: ``begin`` takes the options and returns what is :class:`Ready`. The folder
is checked first, and nobody else may write there until the end: ``begin`` may read for minutes before anything is
trained.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.atomic import write_all
from linattn_ref.experiments.learning import runs
from linattn_ref.kernels import jit
from linattn_ref.telling import Say, silent
from linattn_ref.training import adam, folder, loop, schedule
from linattn_ref.training.checks import check_peak

__all__ = ["Learned", "Ready", "check", "rate", "result", "run", "settings", "sizes"]


class Ready(NamedTuple):
    """A task that can be learned."""

    task: loop.Task
    params: Any  # that it begins with
    settings: loop.Settings
    facts: Mapping[str, Any]  # for the record: all that its numbers depend on, besides seed and steps
    said: Callable[[runs.Run, Any], Iterable[str]]  # lines that report the record and what was learned
    ended: Callable[[Any], Mapping[str, str]] = lambda params: {}  # files for the folder, of what was learned
    notes: tuple[str, ...] = ()  # to be told before it begins


class Learned(NamedTuple):
    """What came of it."""

    params: Any
    run: runs.Run
    ready: Ready


def run(
    begin: Callable[..., Ready],
    out: Path,
    *,
    resume: bool = False,
    command: str = "",
    say: Say = silent,
    watch: Callable[[Ready], loop.Watch] = lambda ready: loop.Watch(),
    **options: Any,
) -> Learned:
    """Learn in the folder ``out``, or go on there.

    Parameters
    ----------
    begin : callable
        Of the module of a task.
    out : Path
    resume : bool
        Go on from the last checkpoint, if there is one; see `linattn_ref.training.loop.run`.
    command : str
        For the record.
    say : callable
        Told, a line each, what is left out of the data.
    watch : callable
        Returns, for the task that is ready, the callbacks that follow its run.
    **options
        Those of ``begin``.

    Raises
    ------
    ValueError
        The folder is another run's, or an option is not possible; see ``begin`` and `linattn_ref.training.loop.run`.
    """
    folder.check_folder(out, resume=resume)
    with folder.alone(out):
        ready = begin(**options)
        for note in ready.notes:
            say(note)
        how = ready.settings
        facts = runs.facts(command, how.seed, steps=how.steps, **ready.facts)
        params = loop.run(ready.task, ready.params, how, out, facts=facts, resume=resume, watch=watch(ready))
        write_all({out / name: text for name, text in ready.ended(params).items()})
        return Learned(params, runs.read(out), ready)


def result(**measured: Any) -> dict[str, str]:
    """What was measured in the end, as the file in which `runs.read` finds it."""
    return {folder.RESULT: json.dumps(measured, ensure_ascii=False) + "\n"}


def settings(
    steps: int, seed: int, learning_rate: Callable[[int], float], optimiser: Any = adam, *, every: int, **more: Any
) -> loop.Settings:
    """The settings that tasks share, and ``more``; the optimiser's ``options`` get the compiled loops as well."""
    options = {"kernels": jit, **more.pop("options", {})}
    return loop.Settings(steps, learning_rate, optimiser, options, clip=1.0, every=every, seed=seed, **more)


def sizes(shape: Any) -> dict[str, Any]:
    """A network's sizes, as ``draw`` of `linattn_ref.models` takes them."""
    return {"width": shape.width, "hidden": shape.hidden, "layers": shape.layers, "dtype": np.float32}


def rate(t: int, *, peak: float, steps: int, part: int = 10) -> float:
    """Half a cosine from ``peak`` to 0, times a line that rises to 1 in the first tenth of the steps, or another part.

    The highest rate is a little below ``peak``: 97.6 percent of it with a tenth.
    """
    return schedule.warm_up(t, peak=1.0, warmup=max(1, steps // part)) * schedule.cosine(t, peak=peak, steps=steps)


def check(shape: Any, peak: float | None = None) -> None:
    """Check that a network's width can be cut into its heads, and the highest rate, where that is an option."""
    if shape.width % shape.heads:
        raise ValueError(f"shape: a width of {shape.width} cannot be cut into {shape.heads} heads")
    if peak is not None:
        check_peak(peak)
