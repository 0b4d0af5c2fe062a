"""Measurements that take minutes, each a file as soon as it is there, so that a run can be killed and resumed.

``settings.json`` next to them holds all that they depend on. Those made with other settings are not taken over.
"""

import contextlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from linattn_ref.atomic import write_all
from linattn_ref.experiments.measuring.spread import spread
from linattn_ref.experiments.publishing import record
from linattn_ref.op import Array
from linattn_ref.training.folder import alone

__all__ = ["measure_all"]


def prepare(folder: Path, settings: Mapping[str, Any], resume: bool) -> None:
    """Keep the parts that are there if ``resume``, else clear them away."""
    path, settings = folder / "settings.json", json.loads(json.dumps(settings))  # tuples are lists, as in the file
    for half_written in folder.glob(".*.part"):  # of a run that was killed
        half_written.unlink()
    if resume and path.exists():
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            before = None
        if not isinstance(before, dict):
            raise ValueError(f"resume: {path} is damaged; without that file the run begins anew")
        changed = [key for key in {**before, **settings} if before.get(key) != settings.get(key)]
        if changed:
            was = "; ".join(f"{key} was {before.get(key)}, is {settings.get(key)}" for key in changed)
            raise ValueError(f"resume: the results in {folder} were made with other settings: {was}")
        return
    for leftover in (path, *folder.glob("*.npy")):
        leftover.unlink(missing_ok=True)
    write_all({path: json.dumps(settings, indent=2) + "\n"})


def store(folder: Path, name: str, values: Array) -> None:
    """Write one part."""
    content = io.BytesIO()
    np.save(content, values)  # to a file itself it would not report that the disk is full
    write_all({folder / f"{name}.npy": content.getvalue()})


def load(folder: Path, name: str) -> Array | None:
    """Read one part; None if it is not there, or damaged (it is then computed again)."""
    try:
        return np.load(folder / f"{name}.npy")
    except (FileNotFoundError, ValueError, EOFError):
        return None


def measure_all(
    tasks: Mapping[str, Callable[[], Array] | tuple[Any, ...]],
    settings: Mapping[str, Any],
    *,
    parts: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool = False,
    unit: str = "point",
    workers: int = 1,
    dask: str | None = None,
) -> dict[str, Array]:
    """Do all tasks: one after the other, unless there are ``workers``.

    Parameters
    ----------
    tasks : mapping from str to callable or tuple
        What measures an array of numbers, with its arguments if it has some, by the name that its file is to have.
    settings : mapping
        Everything that the results depend on, as JSON has it; versions and machine are added.
    parts : path, optional
        A folder where results are kept as they come.
    resume : bool
        Take over the results that are there already. Otherwise they are removed.
    progress : bool
        Show a bar on standard error, if that is a terminal; it counts in ``unit``.
    workers, dask
        Who does the tasks: see `spread.spread`. Their results depend on nothing but their arguments, so that a run that
        was killed and resumed ends with the same bits as one that was not, whoever computes them.

    Returns
    -------
    dict from task name to ndarray

    Raises
    ------
    ValueError
        ``resume``, but ``parts`` was filled with other settings; or another run is writing there.
    OSError
        The disk is full, a worker died (one of Dask's may), or the Dask scheduler does not answer or went away.
    """
    with tempfile.TemporaryDirectory() if parts is None else contextlib.nullcontext(parts) as name:
        folder, where = Path(name), {"versions": record.versions(), "machine": record.machine()}
        with alone(folder):
            prepare(folder, {**settings, **where}, resume)
            found = {task: values for task in tasks if (values := load(folder, task)) is not None}
            calls = [(task, *(x if isinstance(x, tuple) else (x,))) for task, x in tasks.items() if task not in found]
            options: dict[str, Any] = {"unit": unit, "disable": None if progress else True}
            with tqdm(total=len(tasks), initial=len(found), **options) as bar:
                for task, values in spread(_named, calls, workers=workers, dask=dask):
                    store(folder, task, values)
                    found[task] = values
                    bar.update()
    return {task: found[task] for task in tasks}


def _named(task: str, measure: Callable[..., Array], *arguments: Any) -> tuple[str, Array]:
    return task, measure(*arguments)
