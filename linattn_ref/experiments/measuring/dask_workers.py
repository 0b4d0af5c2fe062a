"""Work on a Dask cluster, whose workers may be killed at any time.

What a dead worker had and nobody else is computed again: Dask knows how, as long as it was a task that made it. So a
model, which all calls share, is the result of a task as well, ``pickle.loads`` of its bytes. Scattered data would be
gone with the last worker that had it, and every call that needs it would be cancelled.
"""

import contextlib
import functools
import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any

import dask
from distributed import Client, KilledWorker, as_completed
from distributed.comm import CommClosedError
from threadpoolctl import threadpool_limits

__all__ = ["results"]


def results(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], address: str) -> Iterator[Any]:
    """``function(*call)`` for each of ``calls``, in the order in which they are ready.

    Parameters
    ----------
    function : callable
    calls : sequence of tuple
        An argument that is a tuple itself, such as a model, goes to a worker once, however many calls have it.
    address : str
        Of a Dask scheduler.

    Raises
    ------
    ConnectionError
        The scheduler went away.
    ChildProcessError
        One call has cost several workers their lives.
    OSError
        The scheduler does not answer to begin with.
    """
    models = {id(x): x for call in calls for x in call if isinstance(x, tuple)}
    with _quiet(), Client(address) as client:
        submit = functools.partial(client.submit, pure=False)  # names are not made from the content of the arguments
        shared = {key: submit(pickle.loads, pickle.dumps(model)) for key, model in models.items()}
        futures = [submit(run_on_worker, function, *(shared.get(id(x), x) for x in call)) for call in calls]
        try:
            for future in as_completed(futures):
                yield future.result()
        except KilledWorker as error:
            raise ChildProcessError(f"Dask workers died, several of them at the same work ({error})") from error
        except Exception as error:
            if isinstance(error, (CancelledError, CommClosedError)) or client.status != "running":
                raise ConnectionError(f"the Dask scheduler at {address} went away") from error
            raise


def run_on_worker(function: Callable[..., Any], *arguments: Any) -> Any:
    """``function(*arguments)``, with one BLAS thread for each thread of this process."""
    limit_once(1)
    return function(*arguments)


# For the whole process: a limit that one task ends at its end would end for the tasks next to it too.
limit_once = functools.cache(threadpool_limits)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What goes wrong is an exception, and not in Dask's log as well; and a model is meant to be large."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TiB"}):
            yield
    finally:
        logging.disable(before)
