"""The work behind the spectrum figure: many matrices, several processes, and a run that may be killed at any time.

A task is one sentence: it makes the context mapping matrices of every layer and takes their singular values. Tasks go
to worker processes with one BLAS thread each; every result is a file as soon as it is there. A task's result depends
on nothing but its arguments, so that a run that was killed and resumed ends with the same bits as one that was not.

The workers import this module: it must stay light (no drawing).
"""

import contextlib
import functools
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import numpy as np
from joblib.externals.loky import get_reusable_executor
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from linattn_ref.experiments.measuring.measurements import load, prepared, store
from linattn_ref.op import Array
from linattn_ref.theory.spectrum import Method, singular_values

__all__ = ["Task", "cpu_seconds", "run"]

SHARED_FROM = 100_000  # bytes: larger arrays reach the workers through a shared file instead of a pipe


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


def run_in_worker(parent: int, *arguments: Any) -> Done:
    """`run_task` in a process of its own, which ends when the process ``parent`` is gone, however that came about."""
    _end_with(parent)
    return run_task(*arguments)


@functools.cache
def _end_with(parent: int) -> None:
    """Watch the parent: a worker that waits to hand a result to a parent that was killed would wait for ever."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


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
            for done in _spread_out(missing, method, workers, dask):
                store(folder, done.name, done.values)
                results[done.name] = done.values
                bar.update()
    return results


def _spread_out(tasks: Sequence[Task], method: Method, workers: int, dask: str | None) -> Iterator[Done]:
    """The results in the order in which they are ready."""
    if not tasks:
        return
    calls = [(task.name, method, task.matrices, *task.arguments) for task in tasks]
    if dask is not None:
        from linattn_ref.experiments.rank import spectrum_dask

        yield from spectrum_dask.results(run_task, calls, dask)
        return
    workers = min(workers, len(tasks))
    one = run_task if workers == 1 else functools.partial(run_in_worker, os.getpid())
    with _processes(workers):
        parallel = joblib.Parallel(return_as="generator_unordered", max_nbytes=SHARED_FROM)
        results = parallel(joblib.delayed(one)(*call) for call in calls)
        try:
            for done in results:  # noqa: UP028  # `yield from` would close it with the warning below
                yield done
        except BrokenProcessPool as error:
            raise ChildProcessError("a worker process died (killed, or out of memory)") from error
        finally:
            with warnings.catch_warnings(action="ignore"):  # that tasks are cancelled, where the caller stops early
                results.close()


@contextlib.contextmanager
def _processes(workers: int) -> Iterator[None]:
    """Who does joblib's work inside this block."""
    if workers == 1:
        with joblib.parallel_config("sequential"):
            yield
    else:
        with joblib.parallel_config("loky", n_jobs=workers, inner_max_num_threads=1):
            try:
                yield
            finally:  # or they would idle on, and their CPU time would not be ours yet
                get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended, since this process began."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
