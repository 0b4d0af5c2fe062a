"""Measurements that take minutes, each a file as soon as it is there, so that a run can be killed and resumed."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from linattn_ref.experiments.measuring.parts import load, prepared, store
from linattn_ref.experiments.publishing import record
from linattn_ref.op import Array

__all__ = ["measure_all"]


def measure_all(
    tasks: Mapping[str, Callable[[], Array]],
    settings: Mapping[str, Any],
    *,
    parts: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool = False,
) -> dict[str, Array]:
    """Do all tasks, one after the other.

    Parameters
    ----------
    tasks : mapping from str to callable
        What measures an array of numbers, by the name that its file is to have.
    settings : mapping
        Everything that the results depend on, as JSON has it; versions and machine are added.
    parts : path, optional
        A folder where results are kept as they come.
    resume : bool
        Take over the results that are there already. Otherwise they are removed.
    progress : bool
        Show a bar on standard error, if that is a terminal.

    Returns
    -------
    dict from task name to ndarray

    Raises
    ------
    ValueError
        ``resume``, but ``parts`` was filled with other settings; or another run is writing there.
    """
    found = {}
    with tempfile.TemporaryDirectory() if parts is None else contextlib.nullcontext(parts) as name:
        folder, where = Path(name), {"versions": record.versions(), "machine": record.machine()}
        with prepared(folder, {**settings, **where}, resume):
            for task, measure in tqdm(tasks.items(), unit="point", disable=None if progress else True):
                values = load(folder, task)
                if values is None:
                    values = measure()
                    store(folder, task, values)
                found[task] = values
    return found
