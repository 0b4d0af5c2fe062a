"""``linattn-ref train``: what is learned by this package's own gradients. Can be stopped, and resumed."""

import argparse
import importlib
from functools import partial
from pathlib import Path
from typing import Any

from linattn_ref.cli.options import add_command, at_least, say, tell, watched
from linattn_ref.experiments.learning.tasks import QUICK_STEPS, TASKS, Task

__all__ = ["add_gather", "add_tasks"]


def add_tasks(commands: Any) -> None:
    """A command a task."""
    for name, task in TASKS.items():
        run = partial(run_task, name, task)
        command = add_command(commands, name, run, f"{task.about}\n\n{task.writes}")
        command.set_defaults(if_interrupted="; the same command with --resume goes on from the last checkpoint")
        option = command.add_argument
        option("--out", type=Path, default=Path("out") / name, metavar="DIR", help="(default: %(default)s)")
        option("--attention", choices=task.attention, default=task.default, help="(default: %(default)s)")
        option("--steps", type=at_least(1), metavar="S", help=f"(default: {task.steps}, or {QUICK_STEPS} with --quick)")
        option("--seed", type=at_least(0), default=0, help="(default: 0)")
        option("--quick", action="store_true", help="a tiny network, for a test")
        option(
            "--resume", action="store_true", help="go on from the last checkpoint there; an ended run, with more steps"
        )
        for one in task.options:
            how: dict[str, Any] = {"dest": one.name, "default": None, "help": one.help}
            if one.kind is bool:
                how["action"] = "store_true"
            elif isinstance(one.kind, tuple):
                how["choices"] = one.kind
            else:
                how |= {"type": at_least(one.kind) if isinstance(one.kind, int) else one.kind, "metavar": one.metavar}
            option(one.word, **how)


def run_task(name: str, task: Task, arguments: argparse.Namespace) -> None:
    """Learn, and say what came of it."""
    from linattn_ref.experiments.learning import learn

    module = importlib.import_module(f"linattn_ref.experiments.learning.{name}")
    given = {"steps": arguments.steps, **{one.name: getattr(arguments, one.name) for one in task.options}}
    options = {"steps": QUICK_STEPS, **task.quick} if arguments.quick else {}
    options |= {option: value for option, value in given.items() if value is not None}
    shape = module.Shape(**{field: options.pop(field) for field in module.Shape._fields if field in options})
    how = {"resume": arguments.resume, "command": arguments.command_line, "say": tell, "progress": watched}
    chosen = {"attention": arguments.attention, "seed": arguments.seed, "shape": shape, **options}
    learned = learn.run(module.begin, arguments.out, **how, **chosen)
    say(*learned.ready.said(learned.run, learned.params), sep="\n")
    say("wrote", *sorted(str(path) for path in arguments.out.glob("[!.]*")))


def add_gather(commands: Any) -> None:
    """The command for what many runs have said."""
    option = add_command(commands, "gather", run_gather).add_argument
    option("folder", type=Path, metavar="DIR", help="the runs lie in it, each in a folder of its own")
    option("target", type=Path, metavar="FILE.json", help="of the committed ones: figures/records/NAME.json")
    option("--weights", nargs="+", default=(), metavar="RUN", help="of these, the weights too: FILE-RUN.safetensors")


def run_gather(arguments: argparse.Namespace) -> None:
    """Write the records of many runs of training as one file, from which figures are drawn.

    Of a long curve every so many evaluations are kept. The checkpoints stay where they are.
    """
    from linattn_ref.experiments.learning import runs

    for name, run in runs.gather(arguments.folder, arguments.target, arguments.weights).items():
        last = ", ".join(f"{what} {curve[-1]:.4g}" for what, curve in run.curves.items())
        say(f"{name}: {run.steps[-1]} of {run.facts['steps']} steps, {run.cpu_seconds[-1]:.0f} CPU seconds, {last}")
    say("wrote", *[arguments.target, *(runs.beside(arguments.target, name) for name in arguments.weights)])
