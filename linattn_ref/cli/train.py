"""``linattn-ref train``: what is learned by this package's own gradients. Can be stopped, and resumed."""

import argparse
import inspect
from functools import partial
from pathlib import Path
from typing import Any

from linattn_ref.cli.options import add_command, at_least, curve, in_words, say, tell, watched
from linattn_ref.experiments.learning.tasks import TASKS, module_of

__all__ = ["add"]

QUICK_STEPS = 40
WRITES = "Writes record.jsonl (the command, seed and versions; then losses), "


def add(commands: Any) -> None:
    """A command per task, whose module is loaded when that is the command; plans of many runs, and what these said."""
    train = add_command(commands, "train", run_plan, "Train a network with this package's own gradients.")
    train.set_defaults(if_interrupted="; the same command goes on from the last checkpoints")
    option = train.add_argument
    option("--plan", type=Path, metavar="FILE", help="run what is missing of the many runs that FILE.toml lists")
    option("--plan-out", type=Path, metavar="DIR", help="their folders are made there (default: out/ and FILE)")
    option("--only", default="", metavar="NAME", help="those alone whose names begin so")
    option("--list", action="store_true", help="say what is done and what is left, and run nothing")
    option("--workers", type=at_least(1), metavar="N", help="processes, of a thread each (default: 1)")
    option("--dask", metavar="ADDRESS", help="a Dask scheduler, whose workers run them instead")
    tasks = train.add_subparsers(title="what", metavar="WHAT")
    for name, task in TASKS.items():
        command = add_command(tasks, name, partial(run_task, name), f"{task.about}\n\n{WRITES}{task.writes}.")
        command.set_defaults(if_interrupted="; the same command with --resume goes on from the last checkpoint")
        command.late = partial(add_options, name, command)

    option = add_command(commands, "gather", run_gather).add_argument
    option("folder", type=Path, metavar="DIR", help="the runs lie in it, each in a folder of its own")
    option("target", type=Path, metavar="FILE.json", help="of the committed ones: figures/records/NAME.json")
    option("--weights", nargs="+", default=(), metavar="RUN", help="of these, the weights too: FILE-RUN.safetensors")


def run_plan(arguments: argparse.Namespace) -> None:
    """Run what is missing of a plan."""
    from linattn_ref.experiments.learning import plan

    if arguments.plan is None:
        raise ValueError(f"train: what? Give a task ({', '.join(TASKS)}), or --plan FILE")
    out = arguments.plan_out or Path("out") / arguments.plan.stem
    if not arguments.list:
        given = {"workers": arguments.workers or 1, "dask": arguments.dask, "only": arguments.only}
        plan.run(arguments.plan, out, say=tell, **given)
    for one in plan.chosen(plan.read(arguments.plan), arguments.only):
        say(f"{one.name}: {plan.steps_done(one, out)} steps, about {one.hours} hours: {plan.command(one, out)}")


def add_options(name: str, command: argparse.ArgumentParser) -> None:
    """What all tasks have, and this one's own."""
    from linattn_ref.experiments.learning.options import options_of

    module, option = module_of(name), command.add_argument
    steps = inspect.signature(module.begin).parameters["steps"].default
    option("--out", type=Path, default=Path("out") / name, metavar="DIR", help="(default: %(default)s)")
    quick = {"steps": QUICK_STEPS, **module.QUICK}["steps"]
    option("--steps", type=at_least(1), metavar="S", help=f"(default: {steps}, or {quick} with --quick)")
    option("--seed", type=at_least(0), default=0, help="(default: 0)")
    option("--quick", action="store_true", help=getattr(module, "QUICKLY", "a tiny network, for a test"))
    option("--resume", action="store_true", help="go on from the last checkpoint there; an ended run, with more steps")
    for field, kinds, default, said in options_of(module):
        told = said.help if default in (None, False) or "(default" in said.help else f"{said.help} (default: {default})"
        how: dict[str, Any] = {"dest": field, "default": None, "help": told.strip()}
        if kinds == (bool,):
            how["action"] = "store_true"
        elif choices := [*said.choices] or [kind for kind in kinds if isinstance(kind, str)]:
            how["choices"] = choices
        else:
            how |= {"type": at_least(said.least) if kinds[0] is int else kinds[0], "metavar": said.metavar}
        option(said.word or f"--{field.replace('_', '-')}", **how)


def run_task(name: str, arguments: argparse.Namespace) -> None:
    """Learn, and say what came of it."""
    from linattn_ref.experiments.learning import learn
    from linattn_ref.experiments.learning.options import options_of

    for option in ("plan", "plan_out", "only", "list", "workers", "dask"):
        if getattr(arguments, option):
            raise ValueError(f"--{option.replace('_', '-')}: belongs to a plan; leave out {name}, or the option")
    module = module_of(name)
    fields = ["steps", *(field for field, *_ in options_of(module))]
    options = {"steps": QUICK_STEPS, **module.QUICK} if arguments.quick else {}
    options |= {field: value for field in fields if (value := getattr(arguments, field)) is not None}
    shape = module.Shape(**{field: options.pop(field) for field in module.Shape._fields if field in options})
    how = {"resume": arguments.resume, "command": arguments.command_line, "say": tell, "watch": watch}
    before = written(arguments.out)
    learned = learn.run(module.begin, arguments.out, seed=arguments.seed, shape=shape, **how, **options)
    say(*learned.ready.said(learned.run, learned.params), sep="\n")
    say("wrote", *(path for path, _ in sorted(written(arguments.out) - before)))


def written(folder: Path) -> set[tuple[Path, int]]:
    """The files of a folder, with the times at which they were written."""
    return {(path, path.stat().st_mtime_ns) for path in folder.glob("[!.]*")}


def watch(ready: Any) -> Any:
    """Say how long it will take, then how the loss falls, and the least that is had without a network."""
    from linattn_ref.training import loop

    name, least = min(ready.facts.get("yardsticks", {}).items(), key=lambda one: one[1], default=("", None))
    losses: list[float] = []

    def said() -> str:
        compared = "" if least is None else f" ({name}: {least:.3f})"
        return f"loss {losses[-1]:.3f}{compared} {curve(losses)}" if losses else ""

    def takes(seconds: float) -> None:
        tell(f"{ready.settings.steps} steps: {in_words(seconds)} on this machine")

    return loop.Watch(partial(watched, said=said), takes, lambda line: losses.append(line["loss"]))


def run_gather(arguments: argparse.Namespace) -> None:
    """Write the records of many runs of training as one file, from which figures are drawn.

    Of a long curve every so many evaluations are kept. The checkpoints stay where they are.
    """
    from linattn_ref.experiments.learning import runs

    for name, run in runs.gather(arguments.folder, arguments.target, arguments.weights).items():
        last = ", ".join(f"{what} {curve[-1]:.4g}" for what, curve in run.curves.items())
        say(f"{name}: {run.steps[-1]} of {run.facts['steps']} steps, {run.cpu_seconds[-1]:.0f} CPU seconds, {last}")
    say("wrote", *[arguments.target, *(runs.beside(arguments.target, name) for name in arguments.weights)])
