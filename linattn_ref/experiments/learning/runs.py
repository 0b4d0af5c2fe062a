"""What a run of training says of itself, and reading it again for a figure.

Runs take hours, so figures are drawn from what was gathered of them: ``linattn-ref gather out/runs NAME.json`` writes
the records of all runs in a folder as one file, and those in ``figures/records`` are committed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

import linattn_ref
from linattn_ref.atomic import write_all
from linattn_ref.attention.arguments import Array
from linattn_ref.data import fetch
from linattn_ref.training import checkpoint
from linattn_ref.training.loop import LAST, RECORD, RESULT, read_record, read_times

__all__ = [
    "RECORDS",
    "Run",
    "commands",
    "facts",
    "gather",
    "gathered",
    "go_on",
    "keep_weights",
    "kept_weights",
    "read",
    "read_all",
    "steps_in_all",
]

Tree = TypeVar("Tree")

RECORDS = Path(linattn_ref.__file__).parents[1] / "figures" / "records"  # those that are committed
MOST = 100  # evaluations of a run that are gathered


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
    result = folder / RESULT  # of a task that ends with a test
    said = {"result": json.loads(result.read_text(encoding="utf-8"))} if result.is_file() else {}
    return Run({**first["facts"], **said}, np.array([line["step"] for line in lines]), np.array(times), curves)


def read_all(folder: Path) -> dict[str, Run]:
    """The records of all runs in ``folder``, by the names of their own folders, in order.

    Raises
    ------
    FileNotFoundError
        There is none.
    """
    found = {path.parent.name: read(path.parent) for path in sorted(folder.glob(f"*/{RECORD}"))}
    if not found:
        raise FileNotFoundError(f"{folder}: no run there; `linattn-ref train` makes them, in folders of their own")
    return found


def gather(folder: Path, target: Path) -> dict[str, Run]:
    """Write the records of all runs in ``folder`` as one file, which :func:`gathered` reads.

    A run that was not evaluated yet is left out. Of more than a hundred evaluations every so many are kept, with the
    first and the last; of a number, five digits.

    Raises
    ------
    FileNotFoundError
        There is none.
    """
    from linattn_ref.experiments.publishing.record import json_text, plain

    found = {name: run for name, run in read_all(folder).items() if len(run.steps)}
    if not found:
        raise FileNotFoundError(f"{folder}: none of the runs there has been evaluated yet")
    text = json_text(plain({name: _thinned(run) for name, run in found.items()})) + "\n"
    write_all({target: lambda path: path.write_text(text, encoding="utf-8")})
    return found


def _thinned(run: Run) -> Run:
    count = len(run.steps)
    kept = np.unique(np.linspace(0, count - 1, min(count, MOST)).round().astype(int))
    curves = {name: _rounded(curve[kept]) for name, curve in run.curves.items()}
    return Run(run.facts, run.steps[kept], _rounded(run.cpu_seconds[kept]), curves)


def _rounded(curve: Array) -> Array:
    return np.array([float(f"{x:.5g}") for x in curve])


def gathered(path: Path) -> dict[str, Run]:
    """The runs in a file of :func:`gather`, by name.

    Raises
    ------
    FileNotFoundError
        There is no such file: the committed ones are beside the source, not in the package.
    """
    from linattn_ref.experiments.publishing.restore import restore

    return restore(dict[str, Run], json.loads(path.read_text(encoding="utf-8")))


# --- What was learned -----------------------------------------------------------------------------------------------


def keep_weights(out: Path, target: Path) -> None:
    """Write the parameters of a run's last checkpoint with 16 bits each, half of what they had; see `kept_weights`.

    Raises
    ------
    FileNotFoundError
        The run has no checkpoint.
    """
    from safetensors.numpy import save

    found = checkpoint.load(out / LAST)
    learned = {name: array.astype(np.float16) for name, array in found.arrays.items() if name.startswith("params.")}
    content = save(learned, metadata={checkpoint.FACTS: json.dumps(found.facts)})
    write_all({target: lambda path: path.write_bytes(content)})


def go_on(weights: Path, params: Any, out: Path, *, seed: int, network: Mapping[str, Any]) -> dict[str, Any]:
    """Write what an earlier run has learned over ``params``, and return what a record is to say of that run.

    Parameters
    ----------
    weights : Path
        A checkpoint, or what :func:`keep_weights` has made of one.
    params : NamedTuple
        Say the structure.
    out : Path
        The folder of the run that is to go on.
    seed : int
        Its seed: with that of the earlier run it would draw the same batches again.
    network : mapping
        What the facts of both runs have to say alike.

    Raises
    ------
    FileNotFoundError, ValueError
        There is none, it is damaged, of another network or the same seed, or in the folder ``out``.
    """
    if weights.resolve().parent == out.resolve():
        raise ValueError(f"start_from: {weights} is in the folder of this run; give another one for --out")
    try:
        kept = checkpoint.load(weights).facts
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"start_from: {error}") from error
    before = kept.get("facts", {})
    for name, value in network.items():
        if before.get(name) != value:
            raise ValueError(f"start_from: {weights} has {name} {before.get(name)}, not {value}")
    if before["seed"] == seed:
        raise ValueError(f"seed: {weights} was trained with seed {seed}, whose batches would come again; give another")
    kept_weights(weights, params)
    steps = steps_in_all(before, kept["step"])
    said = {"command": before["command"], "sha256": fetch.file_sha256(weights), "steps": steps}
    return {**said, "start": before["start"]} if "start" in before else said


def commands(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Of a run by its ``facts``, and before it those of the runs that it went on from."""
    return (*(commands(facts["start"]) if "start" in facts else ()), facts["command"])


def steps_in_all(facts: Mapping[str, Any], steps: int) -> int:
    """A run's own ``steps``, and those of the runs that it went on from by its ``facts``."""
    return steps + facts.get("start", {}).get("steps", 0)


def kept_weights(path: Path, params: Tree) -> Tree:
    """Write what :func:`keep_weights` kept over ``params``, which say the structure, and return them.

    Raises
    ------
    FileNotFoundError
        There is no such file: the committed ones are beside the source, not in the package.
    ValueError
        It holds those of another model.
    """
    found = checkpoint.load(path)
    wide = {name: array.astype(np.float32) for name, array in found.arrays.items()}
    checkpoint.restore(params, checkpoint.Checkpoint(wide, found.facts), "params")
    return params
