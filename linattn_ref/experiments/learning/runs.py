"""The record of a run of training, and how it is read again for a figure.

Runs take hours, so figures are drawn from gathered records: ``linattn-ref gather out/runs NAME.json`` writes those of
all runs in a folder as one file, and the files in ``figures/records`` are committed.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from linattn_ref import clone
from linattn_ref.atomic import write_all
from linattn_ref.data import fetch
from linattn_ref.op import Array
from linattn_ref.training import checkpoint
from linattn_ref.training.folder import LAST, RECORD, RESULT, read_record, read_times

__all__ = ["PLAN", "RECORDS", "Run", "beside", "check_target", "commands", "facts", "gather", "gathered", "go_on"]
__all__ += ["keep_weights", "kept_weights", "read", "read_all", "steps_in_all"]

RECORDS = clone.ROOT / "figures" / "records"  # those that are committed
PLAN = "plan.json"  # in a run's folder, what would count as yes and as no
MOST = 100  # evaluations of a run that are gathered


class Run(NamedTuple):
    """A run's record."""

    facts: dict[str, Any]
    steps: Array  # (evaluations,)
    cpu_seconds: Array  # (evaluations,), of the training alone
    curves: dict[str, Array]  # (evaluations,) each: "loss", "training_loss", ...

    @property
    def after(self) -> str:
        """What it took, in words."""
        return f"after {self.steps[-1]} steps and {self.cpu_seconds[-1]:.0f} CPU seconds"


def facts(command: str, seed: int, **more: Any) -> dict[str, Any]:
    """The facts of a record: what was run, with which versions, on which machine."""
    from linattn_ref.experiments.publishing.record import machine, versions

    return {"command": command, "seed": seed, **more, "versions": versions(("numpy", "numba")), "machine": machine()}


def read(folder: Path) -> Run:
    """The record of a run; its seconds are NaN where they are not known.

    Raises
    ------
    FileNotFoundError
        There is none.
    ValueError
        It is empty, or damaged.
    """
    said, seconds = read_record(folder), read_times(folder)
    if not said:
        raise ValueError(f"{folder / RECORD}: empty; no record of a run")
    first, *lines = said
    more = {"result": folder / RESULT, "plan": folder / PLAN}  # of a task that ends with a test; of a plan's run
    try:
        ended = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in more.items() if path.is_file()}
        spent = {line["step"]: line["cpu_seconds"] for line in seconds}
        if seconds:  # a process killed between two files leaves a line more in one
            lines = [line for line in lines if line["step"] in spent]
        times = np.array([spent.get(line["step"]) for line in lines], float)
        steps = np.array([line["step"] for line in lines])
        names = [name for name in (lines[0] if lines else {}) if name != "step"]
        curves = {name: np.array([line[name] for line in lines]) for name in names}
        if "steps" not in first["facts"]:
            raise KeyError("steps")
        return Run({**first["facts"], **ended}, steps, times, curves)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder}: damaged, or no record of a run ({error!r})") from error


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


def gather(folder: Path, target: Path, weights: Sequence[str] = ()) -> dict[str, Run]:
    """Write the records of all runs in ``folder`` as one file, which :func:`gathered` reads.

    A run that was not evaluated yet is left out. Of more than a hundred evaluations every so many are kept, with the
    first and the last; of a number, five digits. With the names of some runs as ``weights``, a file beside it has what
    each of them has learned, as :func:`keep_weights` writes it; either all of these files are written, or none.

    Raises
    ------
    FileNotFoundError
        There is none, or no checkpoint of one whose weights are to be kept.
    OSError
        One of the files cannot be written.
    ValueError
        ``target`` lies in the folder of a run or has another ending than ``.json``, a record is damaged, or ``weights``
        names none of the runs.
    """
    from linattn_ref.experiments.publishing.record import json_text, plain

    check_target(target, ".json")
    found = {name: run for name, run in read_all(folder).items() if len(run.steps)}
    if not found:
        raise FileNotFoundError(f"{folder}: none of the runs there has been evaluated yet")
    text = json_text(plain({name: _thinned(run) for name, run in found.items()})) + "\n"
    contents = {target: text.encode("utf-8")}
    for name in weights:
        if name not in found:
            raise ValueError(f"weights: expected some of the runs {', '.join(found)}, got {name!r}")
        contents[beside(target, name)] = _half(folder / name)
    write_all(contents)
    return found


def beside(target: Path, name: str) -> Path:
    """Where :func:`gather` writes the weights of the run of that name."""
    return target.with_name(f"{target.stem}-{name}.safetensors")


def _thinned(run: Run) -> Run:
    """`MOST` of its evaluations. The training loss, a mean since the one before, is that since the one that is kept."""
    count = len(run.steps)
    kept = np.unique(np.linspace(0, count - 1, min(count, MOST)).round().astype(int))
    curves = {name: curve[kept] for name, curve in run.curves.items()}
    if len(kept) < count and "training_loss" in curves:
        summed = np.cumsum(run.curves["training_loss"] * np.diff(run.steps, prepend=0))
        curves["training_loss"] = np.diff(summed[kept], prepend=0) / np.diff(run.steps[kept], prepend=0)
    curves = {name: _rounded(curve) for name, curve in curves.items()}
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
    from linattn_ref.experiments.publishing.restore import Results, restore

    stored = json.loads(clone.needed(path).read_text(encoding="utf-8"))
    numbers = {name: restore(Results, {**run, "facts": None}) for name, run in stored.items()}
    return {name: Run(**{**run, "facts": stored[name]["facts"]}) for name, run in numbers.items()}


# --- What was learned -----------------------------------------------------------------------------------------------


def keep_weights(out: Path, target: Path) -> None:
    """Write the parameters of a run's last checkpoint with 16 bits each, half of what they had; see `kept_weights`.

    Raises
    ------
    FileNotFoundError
        The run has no checkpoint.
    ValueError
        ``target`` lies in the folder of a run, whose own checkpoints have such names, or has another ending than
        ``.safetensors``.
    """
    check_target(target, ".safetensors")
    write_all({target: _half(out)})


def _half(out: Path) -> bytes:
    """A safetensors file's content."""
    from safetensors.numpy import save

    found = checkpoint.load(out / LAST)
    learned = {name: array.astype(np.float16) for name, array in found.arrays.items() if name.startswith("params.")}
    return save(learned, metadata={checkpoint.FACTS: json.dumps(found.facts)})


def check_target(target: Path, suffix: str, name: str = "target") -> None:
    """Find out whether something may be written there: not beside a run's own files, nor over one of another kind.

    Raises
    ------
    ValueError
        ``target``, an argument of that name, lies in the folder of a run, or does not end in ``suffix``.
    """
    if (target.parent / RECORD).exists():
        raise ValueError(f"{name}: {target} lies in the folder of a run, whose files stay as they are; give another")
    if target.suffix.lower() != suffix:
        raise ValueError(f"{name}: expected a file name that ends in {suffix}, got {target.name}")


def go_on(weights: Path, params: Any, *, seed: int, network: Mapping[str, Any]) -> dict[str, Any]:
    """Write what an earlier run has learned over ``params``, and return what a record is to say of that run.

    Parameters
    ----------
    weights : Path
        A checkpoint, or what :func:`keep_weights` has made of one.
    params : NamedTuple
        Of the same structure; they are overwritten.
    seed : int
        Of the run that is to go on: with that of an earlier run it would draw the same batches again.
    network : mapping
        Facts that the earlier run has to share.

    Raises
    ------
    FileNotFoundError, ValueError
        There is none, it is damaged, of another network or the same seed.
    """
    try:
        kept = checkpoint.load(weights).facts
        before = kept["facts"]
        seeds, steps = [_seed(run) for run in _chain(before)], steps_in_all(before, kept["step"])
        said = {"command": before["command"], "seed": before["seed"], "sha256": fetch.file_sha256(weights)}
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"start_from (--start): {error}") from error
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"start_from (--start): {weights} does not say what made it ({error!r})") from error
    for name, value in network.items():
        if before.get(name) != value:
            raise ValueError(f"start_from (--start): {weights} has {name} {before.get(name)}, not {value}")
    if seed in seeds:
        raise ValueError(f"seed: batches of seed {seed} would come again, {weights} has learned them; give another")
    kept_weights(weights, params)
    return {**said, "steps": steps, **{name: before[name] for name in ("start", "lengthened") if name in before}}


def _chain(facts: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A run's facts, then those of the runs that it went on from, the latest first."""
    yield facts
    if "start" in facts:
        yield from _chain(facts["start"])


def _seed(run: Mapping[str, Any]) -> int:
    """A run's seed, which older runs have only in their command."""
    words = run["command"].split()
    return run["seed"] if "seed" in run else int(words[words.index("--seed") + 1]) if "--seed" in words else 0


def commands(facts: Mapping[str, Any], *, lengthened: bool = True) -> tuple[str, ...]:
    """The commands of a run by its ``facts``, after those of the runs that it went on from; each is followed by those
    that ``lengthened`` it, unless they are not asked for."""
    chain = list(_chain(facts))[::-1]
    return tuple(one["command"] for run in chain for one in (run, *(run.get("lengthened", ()) if lengthened else ())))


def steps_in_all(facts: Mapping[str, Any], steps: int) -> int:
    """A run's own ``steps``, and those of the runs that it went on from by its ``facts``."""
    return steps + facts.get("start", {}).get("steps", 0)


def kept_weights(path: Path, params: Any) -> Any:
    """Write what :func:`keep_weights` kept over ``params``, which have the same structure, and return them.

    Raises
    ------
    FileNotFoundError
        There is no such file: the committed ones are beside the source, not in the package.
    ValueError
        It holds those of another model.
    """
    found = checkpoint.load(clone.needed(path))
    wide = {name: array.astype(np.float32) for name, array in found.arrays.items()}
    try:
        checkpoint.restore(params, checkpoint.Checkpoint(wide, found.facts), "params")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return params
