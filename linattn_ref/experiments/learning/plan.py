"""Plans of many runs of training: ``linattn-ref train --plan FILE`` runs what is missing, and can be stopped.

A plan is a TOML file with a table per question, which says what would count as an answer before anything is run:

    [copying]
    task = "duplication"                        # of `linattn-ref train`
    claim = "Linear attention reaches the same loss as softmax."
    yes = "Its loss is no more than .002 nats above that of softmax, for each seed."
    no = "It is, for one of the seeds."
    hours = 0.5                                 # that a run takes, of one core
    seeds = [0, 1]
    each = { attention = ["softmax", "linear"] }
    options = { length = 128, steps = 10000 }

There is a run for each combination of what is in ``each``, and each seed; its name says which, and so does its folder.
With ``start = "NAME"`` each goes on from the run of the earlier table ``[NAME]`` that has its seed, and waits for that.
What would count lies in each folder before its run begins, and ``linattn-ref gather`` takes it over into the record.
"""

import inspect
import itertools
import json
import math
import os
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from linattn_ref.atomic import write_all
from linattn_ref.experiments.learning import learn, runs
from linattn_ref.experiments.learning.options import options_of
from linattn_ref.experiments.learning.tasks import TASKS, module_of
from linattn_ref.experiments.measuring.spread import spread
from linattn_ref.experiments.measuring.timing import one_thread
from linattn_ref.op.options import check_choice
from linattn_ref.telling import Say, silent
from linattn_ref.training import checkpoint
from linattn_ref.training.folder import LAST, RECORD, RESULT

__all__ = ["Planned", "chosen", "command", "missing", "read", "run", "steps_done"]

SAID = {"claim": str, "yes": str, "no": str, "task": str}
TESTED = {"finetune", "speech"}  # tasks that end with a test
GO_ON = {"finetune"}  # those that take the folder of a run to go on from, and may have its seed
WORDS = {"start_from": "start"}  # options whose names on the command line are others
FILES = {"text", "data", "model"}  # options of which a record keeps a hash, and not the path
VALUES = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", Path: "a file"}
KEYS = {**SAID, "hours": float, "seeds": list, "each": dict, "options": dict}


class Planned(NamedTuple):
    """A run of a plan."""

    name: str  # of its folder
    task: str
    seed: int
    options: Mapping[str, Any]  # of the task's ``begin`` and its ``Shape``
    hours: float  # that it takes, by an estimate
    said: Mapping[str, str]  # "claim", "yes" and "no"
    start: str | None = None  # the run that it goes on from


def read(path: Path) -> list[Planned]:
    """The runs of a plan, in the order in which they are to be run.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        It is no plan: the table and the key are named.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"plan: {path} is not TOML ({error})") from error
    if not tables:
        raise ValueError(f"plan: {path} has no question")
    plan: dict[str, Planned] = {}
    for name, table in tables.items():
        for one in _runs(f"plan: {path}, [{name}]", name, table, plan):
            if one.name in plan:
                raise ValueError(f"plan: {path}, [{name}]: the plan has a run {one.name} already")
            plan[one.name] = one
    return [*plan.values()]


def chosen(plan: Sequence[Planned], only: str) -> list[Planned]:
    """The runs of a plan whose names begin so; a ValueError where there are none."""
    if not (found := [one for one in plan if one.name.startswith(only)]):
        raise ValueError(f"only: no run of the plan has a name that begins with {only!r}")
    return found


def _runs(where: str, name: str, table: Any, before: Mapping[str, Planned]) -> Iterator[Planned]:
    if not isinstance(table, dict) or {*table} - {"start"} != {*KEYS}:
        raise ValueError(f"{where}: expected a table of {', '.join(KEYS)}, got {table!r:.200}")
    for key, kind in KEYS.items():
        if not isinstance(table[key], (float, int) if kind is float else kind):
            raise ValueError(f"{where}: {key}: expected a {kind.__name__}, got {table[key]!r}")
    check_choice(f"{where}: task", table["task"], TASKS)
    if not (math.isfinite(table["hours"]) and table["hours"] > 0) or isinstance(table["hours"], bool):
        raise ValueError(f"{where}: hours: expected a number above 0, got {table['hours']!r}")
    if not (seeds := table["seeds"]) or len({*map(str, seeds)}) < len(seeds) or not all(map(_is_whole, seeds)):
        raise ValueError(f"{where}: seeds: expected different whole numbers of at least 0, got {seeds!r}")
    for option, values in table["each"].items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"{where}: {option}: expected a list of values, got {values!r}")
    given, allowed = [*table["each"], *table["options"]], _allowed(table["task"])
    for option in given:
        if option not in allowed or given.count(option) > 1:
            raise ValueError(f"{where}: {option}: expected, once, one of {', '.join(allowed)}")
    for option, kinds, _, described in options_of(module_of(table["task"])):
        choices = tuple(described.choices) or tuple(kind for kind in kinds if isinstance(kind, str))
        for value in [table["options"][option]] if option in table["options"] else table["each"].get(option, []):
            _check_value(f"{where}: {option}", value, kinds[0], choices)
    for steps in (table["options"].get("steps", 1), *table["each"].get("steps", ())):
        if not _is_whole(steps) or steps == 0:
            raise ValueError(f"{where}: steps: expected a whole number of at least 1, got {steps!r}")
    task, said = table["task"], {key: table[key] for key in SAID if key != "task"}
    for *values, seed in itertools.product(*table["each"].values(), seeds):
        options = {**dict(zip(table["each"], values, strict=True)), **table["options"]}
        start = f"{table['start']}-{seed}" if "start" in table else None
        earlier = before.get(start) if start else None
        if start and (task not in GO_ON or earlier is None or earlier.start or earlier.task != task):
            raise ValueError(f"{where}: start: no run of {task} can go on from a run {start!r} above it")
        called = "-".join(map(str, (name, *values, seed)))
        if "/" in called or os.sep in called:
            raise ValueError(f"{where}: a run's name is that of its folder, and cannot be {called!r}")
        yield Planned(called, task, seed, options, table["hours"], said, start)


def _check_value(where: str, value: Any, kind: Any, choices: tuple[str, ...]) -> None:
    """An option's value, before hours of training in front of it; its task says how large it may be."""
    if choices:
        check_choice(where, value, choices)
    wanted: Any = {float: (float, int), Path: str}.get(kind, kind)
    if isinstance(kind, type) and (not isinstance(value, wanted) or isinstance(value, bool) != (kind is bool)):
        raise ValueError(f"{where}: expected {VALUES[kind]}, got {value!r}")


def _is_whole(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and x >= 0


def _allowed(task: str) -> list[str]:
    """The options of the task's command; where a run goes on from is asked for by ``start``."""
    return ["steps", *(name for name, *_ in options_of(module_of(task)) if name != "start_from")]


def _given(planned: Planned, out: Path) -> dict[str, Any]:
    """Options, with where it goes on from."""
    return {**planned.options, **({"start_from": out / planned.start} if planned.start else {})}


def command(planned: Planned, out: Path) -> str:
    """The command line that makes this run alone, in the folder of its name in ``out``."""
    words = ["linattn-ref", "train", planned.task]
    for name, value in {**_given(planned, out), "seed": planned.seed, "out": out / planned.name}.items():
        if value is not False:
            words += [f"--{WORDS.get(name, name).replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words)


def steps_done(planned: Planned, out: Path) -> int:
    """Steps that a run has taken until its last checkpoint; without one, its record is enough if it is whole."""
    folder = out / planned.name
    if not (folder / RECORD).is_file():
        return 0
    if (folder / LAST).is_file():
        return int(checkpoint.load(folder / LAST).facts["step"])
    steps = int(max(runs.read(folder).steps, default=0))
    return steps if steps >= _steps(planned) else 0


def missing(plan: Sequence[Planned], out: Path) -> list[Planned]:
    """The runs that have not come to their end, or not through the test there."""

    def ended(one: Planned) -> bool:
        return steps_done(one, out) >= _steps(one) and (one.task not in TESTED or (out / one.name / RESULT).is_file())

    return [one for one in plan if not ended(one)]


def _steps(planned: Planned) -> int:
    module = module_of(planned.task)
    return int(planned.options.get("steps", inspect.signature(module.begin).parameters["steps"].default))


def run(
    path: Path, out: Path, *, workers: int = 1, dask: str | None = None, say: Say = silent, only: str = ""
) -> list[Planned]:
    """Run what is missing of a plan, a folder each in ``out``; return the runs.

    Parameters
    ----------
    path : Path
        The plan.
    out : Path
    workers, dask : int, str
        Processes on this machine, with one thread each; or the address of a Dask scheduler, whose workers have ``out``
        under the same name. If a worker dies, its run goes on from the last checkpoint.
    say : callable
        Told, a line each, what is to be done and what is done.
    only : str
        Only runs whose names begin with this.

    Raises
    ------
    OSError, ValueError
        See `read`, `linattn_ref.experiments.measuring.spread.spread` and `learn.run`. Or a run was begun in
        ``out`` by a plan that says otherwise of it, or is to go on from one that has not come to its end.
    """
    everything = read(path)
    plan = chosen(everything, only)
    for one in plan:
        _keep(out / one.name / runs.PLAN, json.dumps(one.said, ensure_ascii=False) + "\n")
        _check_options(one, out / one.name)
    left = missing(plan, out)
    for one in missing([one for one in everything if one not in plan], out):
        if waiting := [other.name for other in left if other.start == one.name]:
            raise ValueError(f"only: {', '.join(waiting)} would go on from {one.name}, which has not come to its end")
    at_once = max(1, min(workers, len(left)))
    hours = math.fsum(one.hours * (1 - steps_done(one, out) / _steps(one)) for one in left)
    say(f"{len(left)} of {len(plan)} runs are left: about {hours / at_once:.1f} hours, {at_once} at a time")
    for stage in ([one for one in left if not one.start], [one for one in left if one.start]):
        calls = [(one.task, one.seed, _given(one, out), str(out / one.name), command(one, out)) for one in stage]
        for told in spread(run_one, calls, workers=workers, dask=dask):
            say(told)
    return plan


def _keep(path: Path, text: str) -> None:
    """Write what would count, once, and never into the folder of a run that was begun without it."""
    if not path.is_file() and (path.parent / RECORD).is_file():
        raise ValueError(f"out: {path.parent} has a run that was begun before it was said what would count")
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_all({path: text})
    elif path.read_text(encoding="utf-8") != text:
        raise ValueError(f"out: {path} says otherwise what would count, and was there before")


def _check_options(planned: Planned, folder: Path) -> None:
    """Check that a run that is there has the options of the plan, as far as its record has them; files are not."""
    if not (folder / RECORD).is_file():
        return
    facts = runs.read(folder).facts
    said = facts | facts.get("shape", {})
    for name, value in planned.options.items():
        if name in FILES or (name, value) == ("k", 0):  # 0: a quarter of the length, and the record says how much it is
            continue
        if said.get(name) not in (None, value) and not (name == "steps" and said[name] < value):  # it goes on
            raise ValueError(f"out: {folder} has a run of {name} = {said[name]!r}, and the plan says {value!r}")


def run_one(task: str, seed: int, options: dict[str, Any], out: str, command: str) -> str:
    """One run, from its last checkpoint on, on one thread; what came of it in a line."""
    module = module_of(task)
    shape = module.Shape(**{name: options.pop(name) for name in module.Shape._fields if name in options})
    with one_thread():
        found = learn.run(module.begin, Path(out), resume=True, command=command, seed=seed, shape=shape, **options).run
    return f"{Path(out).name}: loss {found.curves['loss'][-1]:.4g} {found.after}"
