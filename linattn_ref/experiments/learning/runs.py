"""What a run of training says of itself, and reading it again for a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from linattn_ref.attention.arguments import Array
from linattn_ref.training.loop import RECORD, read_record, read_times

__all__ = ["Run", "facts", "read", "read_all"]


class Run(NamedTuple):
    """A run's record."""

    facts: dict[str, Any]
    steps: Array  # (evaluations,)
    cpu_seconds: Array  # (evaluations,), of the training alone
    curves: dict[str, Array]  # (evaluations,) each: "loss", "training_loss", ...


def facts(command: str, seed: int, **more: Any) -> dict[str, Any]:
    """What a record says first: what was run, with what, on what."""
    from linattn_ref.experiments.publishing.record import machine, versions

    found = {"command": command, "seed": seed, **more}
    return {**found, "versions": versions(("numpy", "numba")), "machine": machine()}


def read(folder: Path) -> Run:
    """The record of a run."""
    first, *lines = read_record(folder)
    times = [line["cpu_seconds"] for line in read_times(folder)]
    names = [name for name in (lines[0] if lines else {}) if name != "step"]
    curves = {name: np.array([line[name] for line in lines]) for name in names}
    return Run(first["facts"], np.array([line["step"] for line in lines]), np.array(times), curves)


def read_all(folder: Path) -> list[Run]:
    """The records of all runs in ``folder``, in the order of their names.

    Raises
    ------
    FileNotFoundError
        There is none.
    """
    found = [read(path.parent) for path in sorted(folder.glob(f"*/{RECORD}"))]
    if not found:
        raise FileNotFoundError(f"{folder}: no run there; `linattn-ref train` makes them, in folders of their own")
    return found
