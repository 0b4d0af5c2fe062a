"""Calls of one function spread over processes: of this machine, or of a Dask cluster."""

import functools
import itertools
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import joblib
from joblib.externals.loky import get_reusable_executor

__all__ = ["spread"]

SHARED_FROM = 100_000  # bytes: larger arrays reach the workers through a shared file instead of a pipe


def spread(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], *, workers: int = 1, dask: str | None = None
) -> Iterator[Any]:
    """``function(*call)`` for each of ``calls``, in the order in which they are ready.

    Parameters
    ----------
    function : callable
        Of a module, which the processes import.
    calls : sequence of tuple
    workers : int
        Processes on this machine, with one BLAS thread each; 1 or less works in this process.
    dask : str, optional
        Address of a Dask scheduler, whose workers then do the work instead.

    Raises
    ------
    OSError
        A worker died (one of Dask's may), or the Dask scheduler does not answer or went away.
    """
    workers = min(workers, len(calls))
    if calls and dask is not None:
        from linattn_ref.experiments.measuring import dask_workers

        yield from dask_workers.results(function, calls, dask)
    elif workers <= 1:
        yield from itertools.starmap(function, calls)
    else:
        yield from _in_processes(function, calls, workers)


def _in_processes(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], workers: int) -> Iterator[Any]:
    one = joblib.delayed(functools.partial(_in_worker, os.getpid(), function))
    with joblib.parallel_config(backend="loky", n_jobs=workers, inner_max_num_threads=1):
        results = joblib.Parallel(return_as="generator_unordered", max_nbytes=SHARED_FROM)(one(*call) for call in calls)
        try:
            for done in results:  # noqa: UP028  # `yield from` would close it with the warning below
                yield done
        except BrokenProcessPool as error:
            raise ChildProcessError("a worker process died (killed, or out of memory)") from error
        finally:
            with warnings.catch_warnings(action="ignore"):  # that tasks are cancelled, where the caller stops early
                results.close()
            # Or they would idle on, and their CPU time would not be ours yet.
            get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)


def _in_worker(parent: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """In a process of its own, which ends when the process ``parent`` is gone, however that came about."""
    _end_with(parent)
    return function(*arguments)


@functools.cache
def _end_with(parent: int) -> None:
    """Watch the parent: a worker that waits to hand a result to a parent that was killed would wait for ever."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
