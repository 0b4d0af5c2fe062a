"""The work behind the spectrum figure: many matrices, several processes, and a run that may be killed at any time.

A task is one sentence: it makes the context mapping matrices of every layer and takes their singular values. Tasks go
to worker processes with one BLAS thread each; every result is a file as soon as it is there. A task's result depends
on nothing but its arguments, so that a run that was killed and resumed ends with the same bits as one that was not.

The workers import this module: it must stay light (no drawing).
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from linattn_ref.experiments.measuring.measurements import load, prepared, store
from linattn_ref.experiments.measuring.spread import spread
from linattn_ref.op import Array
from linattn_ref.theory.spectrum import Method, singular_values

__all__ = ["Task", "cpu_seconds", "run"]


class Task(NamedTuple):
    """One sentence's matrices: ``matrices(*arguments)`` gives each layer's ``P (H, N, L)``, first layer first."""

    name: str
    matrices: Callable[..., Iterable[Array]]
    arguments: tuple[Any, ...]


class Done(NamedTuple):
    """What a worker sends back."""

    name: str
    values: Array  # (T, H, min(N, L)), singular values by layer and head


def run_task(name: str, method: Method, matrices: Callable[..., Iterable[Array]], *arguments: Any) -> Done:
    """The singular values of one task's matrices, on one thread."""
    with threadpool_limits(1):
        return Done(name, np.stack([singular_values(p, method=method) for p in matrices(*arguments)]))


def run(
    tasks: Sequence[Task],
    folder: Path,
    settings: Mapping[str, Any],
    *,
    method: Method = "svd",
    workers: int = 1,
    dask: str | None = None,
    resume: bool = False,
    progress: bool = False,
) -> dict[str, Array]:
    """Do all tasks, each result a file in ``folder`` as it comes.

    Parameters
    ----------
    tasks : sequence of Task
        With different names.
    folder : Path
        Gets ``settings.json`` and a ``.npy`` file for each task.
    settings : mapping
        Everything that the results depend on, as JSON has it: what `resume` compares.
    method : {"svd", "gram"}
        See `linattn_ref.theory.spectrum.singular_values`.
    workers : int
        Processes on this machine; 1 works in this process.
    dask : str, optional
        Address of a Dask scheduler, whose workers then do the tasks instead.
    resume : bool
        Take over the results that are already in ``folder``. Otherwise they are removed.
    progress : bool
        Show a progress bar on standard error, if that is a terminal.

    Returns
    -------
    dict from task name to ndarray ``(T, H, min(N, L))``

    Raises
    ------
    ValueError
        ``resume``, but ``folder`` was filled with other settings; or another run is writing there.
    OSError
        The disk is full, a worker died (one of Dask's may), or the Dask scheduler does not answer or went away.
    """
    with prepared(folder, settings, resume):
        there = {task.name: load(folder, task.name) for task in tasks}
        results = {name: values for name, values in there.items() if values is not None}
        missing = [task for task in tasks if task.name not in results]
        with tqdm(total=len(tasks), initial=len(results), unit="sentence", disable=None if progress else True) as bar:
            calls = [(task.name, method, task.matrices, *task.arguments) for task in missing]
            for done in spread(run_task, calls, workers=workers, dask=dask):
                store(folder, done.name, done.values)
                results[done.name] = done.values
                bar.update()
    return results


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended, since this process began."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
