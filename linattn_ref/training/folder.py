"""The folder of a run: what lies in it, who may write there, and what is read from it again.

record.jsonl       a line of what was run with (command, settings, seed, versions), then a line per evaluation
last.safetensors   the last checkpoint: parameters, the optimiser's state, the step
best.safetensors   the one with the lowest loss in an evaluation
times.jsonl        a line per evaluation: the CPU seconds of all steps so far, without evaluations and compiling
result.json        what a task has measured in the end, if it does
.lock              held by the process that writes there; the system lets go of it when that process ends
"""

import contextlib
import json
import math
import operator
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, NamedTuple

from linattn_ref.atomic import check_writable, write_all
from linattn_ref.training import checkpoint

try:
    import fcntl
except ImportError:  # Windows, where nothing keeps a second run out
    fcntl = None  # type: ignore[assignment]

__all__ = ["Log", "add", "alone", "begun", "check_files", "check_folder", "read_record", "read_times"]
__all__ += ["BEST", "LAST", "RECORD", "RESULT", "TIMES"]

RECORD, LAST, BEST, RESULT = "record.jsonl", "last.safetensors", "best.safetensors", "result.json"
TIMES = "times.jsonl"  # apart from the record, which is the same bytes each time
LOCK = ".lock"  # not by `filelock`: the lock itself is one call, and where there are none, a run goes on and says so
MAY_DIFFER = ("command", "versions", "machine")  # facts, if nothing has been learned yet
_held: set[tuple[int, Path]] = set()  # thread, folder


@contextlib.contextmanager
def alone(out: Path) -> Iterator[None]:
    """Keep every other run out of the folder ``out``, which is made if it is not there.

    A thread that holds it may take it again: a command from its first line to its last, and its training within. A
    folder that was made for what failed before it wrote anything is taken away.

    Raises
    ------
    ValueError
        Another run is writing there.
    OSError
        The folder cannot be written to.
    """
    is_new = not out.exists()
    check_writable(out / RECORD)
    if (held := (threading.get_ident(), out.resolve())) in _held:
        yield
        return
    with (out / LOCK).open("ab") as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"out: another run is writing in {out}; let it end, or give another folder") from None
        except OSError as error:
            told = f"{out}: its file system has no locks ({error.strerror}), so nothing keeps a second run out"
            warnings.warn(told, RuntimeWarning, stacklevel=3)
        _held.add(held)
        try:
            yield
        except BaseException:
            if is_new and [*out.iterdir()] == [out / LOCK]:  # nothing was begun
                with contextlib.suppress(OSError):
                    (out / LOCK).unlink()
                    out.rmdir()
            raise
        finally:
            _held.remove(held)


def check_folder(out: Path, *, resume: bool = False) -> None:
    """Find out whether a run may begin in ``out``: what another one has learned is not written over.

    Raises
    ------
    ValueError
        Another run is writing there; or there is a checkpoint or a result, and it is not to be resumed, or cannot be.
    """
    if (out / LOCK).exists():
        with alone(out):
            pass
    check_files(out, resume=resume)


def check_files(out: Path, *, resume: bool) -> None:
    """The same, without checking whether another run is writing there."""
    try:
        import safetensors  # noqa: F401  # which the first checkpoint needs
    except ImportError as error:
        raise ImportError(f"checkpoints need safetensors ({error}): pip install 'linattn-ref[spectrum]'") from error
    found = [name for name in (LAST, BEST, RESULT) if (out / name).exists()]
    if found and not resume:
        raise ValueError(f"out: {out} has the {found[0]} of a run; resume that one, or give another folder")
    if RESULT in found and LAST not in found:
        raise ValueError(f"resume: {out} has the {RESULT} of a run, and no {LAST} to go on from; give another folder")


# --- Beginning, and going on ----------------------------------------------------------------------------------------


class Trees(NamedTuple):
    """The arrays of a checkpoint."""

    params: Any
    state: Any  # the optimiser's


class Log(NamedTuple):
    """What is known of a run so far."""

    lines: list[dict[str, Any]]  # of the record: the facts, then an evaluation each
    times: list[dict[str, Any]]
    step: int = 0  # of the last checkpoint
    best: float = math.inf  # the lowest loss in an evaluation

    @property
    def seconds(self) -> float:
        """CPU seconds of all steps so far, NaN if they are unknown."""
        last = self.times[-1]["cpu_seconds"] if self.times else 0.0
        return math.nan if last is None else last

    @property
    def kept(self) -> str:
        """What is left of the run if it fails now."""
        return f"the checkpoint of step {self.step} is good" if self.step else "there is no checkpoint yet"


def begun(out: Path, params: Any, state: Any, facts: dict[str, Any], steps: int, *, resume: bool) -> Log:
    """Write where a record begins; to resume, read the last checkpoint, if there is one, over ``params`` and ``state``.

    Raises
    ------
    ValueError
        See `loop.run`.
    """
    check_files(out, resume=resume)
    for name in (RECORD, LAST, BEST, RESULT, TIMES):
        for left in out.glob(f".{name}.*.part"):  # where a run was killed while it wrote
            left.unlink(missing_ok=True)
    log = Log([{"facts": facts}], [])
    if not (out / LAST).exists() and (out / RECORD).exists():
        _check_own(out, facts)
    if resume and (out / LAST).exists():
        found = checkpoint.load(out / LAST)
        try:
            earlier, step = dict(found.facts["facts"]), operator.index(found.facts["step"])
            best = float(found.facts["best"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{out / LAST} does not say how far its run had come ({error!r})") from error
        said = _earlier_facts(out, earlier, facts, step)
        if step > steps:
            raise ValueError(f"steps: the run in {out} has come to step {step} already, got {steps}")
        checkpoint.restore(params, found, "params")
        checkpoint.restore(state, found, "state")
        evaluations, times = _lines_until(out, step)
        log = Log([{"facts": said}, *evaluations], times, step, best)
        if said != earlier:  # lengthened: what was measured in the end is of fewer steps
            (out / RESULT).unlink(missing_ok=True)
    _write_lines(out, log)
    return log


def _check_own(out: Path, facts: Mapping[str, Any]) -> None:
    """What was begun in ``out``, and not come to a checkpoint, is begun anew; what is another's run stays.

    Raises
    ------
    ValueError
        The record there says other facts, or nothing that can be read.
    """
    said = read_record(out)
    try:
        earlier = dict(said[0]["facts"])
    except (IndexError, KeyError, TypeError, ValueError):
        return  # nothing is lost
    if differing := list(_differing(earlier, facts, MAY_DIFFER)):
        raise ValueError(f"out: another run was begun in {out}: {', '.join(differing)}; give another folder")


def add(out: Path, log: Log, params: Any, state: Any, line: dict[str, Any], seconds: float) -> Log:
    """Write an evaluation and the checkpoints.

    The record is written first and the last checkpoint last. A run that is killed in between goes on from the
    checkpoint before, and writes the same lines again.
    """
    seconds_told = None if math.isnan(seconds) else round(seconds, 3)
    times = [*log.times, {"step": line["step"], "cpu_seconds": seconds_told}]
    new = Log([*log.lines, line], times, line["step"], min(log.best, line["loss"]))
    _write_lines(out, new)
    facts = {"facts": new.lines[0]["facts"], "step": new.step, "best": str(new.best)}
    for name in (BEST, LAST) if new.best < log.best else (LAST,):
        checkpoint.save(out / name, Trees(params, state), facts)
    return new


def _earlier_facts(out: Path, earlier: Mapping[str, Any], now: Mapping[str, Any], step: int) -> dict[str, Any]:
    """What the record of a run in ``out`` is to say first, of which ``earlier`` was said, and now ``now``.

    A run that has come to its last ``step`` may be lengthened: the number of its steps may be a larger one, and the
    facts say so.

    Raises
    ------
    ValueError
        Something else than the command differs.
    """
    before, after = earlier.get("steps"), now.get("steps")
    lengthened = before == step and isinstance(after, int) and after > step
    compared = {**earlier, "steps": after} if lengthened else earlier
    if differing := list(_differing(compared, now, ("command", "lengthened"))):
        told = f"resume: the run in {out} is one with other settings: {', '.join(differing)}"
        unfinished = isinstance(before, int) and isinstance(after, int) and step < before < after
        raise ValueError(told + "; it can be lengthened once it has come to its end" * unfinished)
    if not lengthened:
        return dict(earlier)
    more = {"from": step, "command": now.get("command", "")}
    return {**earlier, "steps": after, "lengthened": [*earlier.get("lengthened", []), more]}


def _differing(
    before: Mapping[str, Any], now: Mapping[str, Any], may: Sequence[str] = (), within: str = ""
) -> Iterator[str]:
    """Each key, but those that may differ, that does not have the same value in both, with both."""
    for key in [key for key in {**before, **now} if key not in may]:
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differing(old, new, within=f"{within}{key}.")
        elif (old != new and json.dumps(old) != json.dumps(new)) or (key in before) != (key in now):
            told = [shortened(side[key]) if key in side else "nothing" for side in (before, now)]
            yield f"{within}{key} (there {told[0]}, here {told[1]})"


def _lines_until(out: Path, step: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The evaluations of a run's record up to its checkpoint of ``step``, and their times, unknown ones as None.

    Raises
    ------
    ValueError
        The record is damaged, or there is none to that step.
    """
    record = out / RECORD
    try:
        kept = [line for line in read_record(out)[1:] if operator.index(line["step"]) <= step]
        seconds = {line["step"]: line["cpu_seconds"] for line in read_times(out)}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{out}: damaged, or no record of a run ({error!r})") from error
    except FileNotFoundError:
        kept, seconds = [], {}
    last = kept[-1]["step"] if kept else 0
    if last != step:
        told = f"resume: {record} is missing or ends at step {last}, and {LAST} is of step {step}"
        raise ValueError(f"{told}; put the whole record there, or give another folder")
    return kept, [{"step": line["step"], "cpu_seconds": seconds.get(line["step"])} for line in kept]


# --- Reading and writing --------------------------------------------------------------------------------------------


def read_record(out: Path) -> list[dict[str, Any]]:
    """The lines of a run's record, the facts first."""
    return _read_lines(out / RECORD)


def read_times(out: Path) -> list[dict[str, Any]]:
    """CPU seconds of the training alone, without what Numba compiles, a line per evaluation; None if they are unknown.

    Empty where there is no such file.
    """
    return _read_lines(out / TIMES) if (out / TIMES).exists() else []


def _read_lines(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except ValueError as error:  # no JSON, or no text
        raise ValueError(f"{path}: damaged, or no record of a run ({error})") from error


def _write_lines(out: Path, log: Log) -> None:
    """The record and the times."""
    files = {RECORD: log.lines, TIMES: log.times}
    write_all({out / name: "".join(json.dumps(line) + "\n" for line in lines) for name, lines in files.items()})
