"""``linattn-ref train``: what is learned by this package's own gradients. Can be stopped, and resumed."""

import argparse
from pathlib import Path
from typing import Any

from linattn_ref.cli.options import add_command, say
from linattn_ref.cli.train_causal import add_characters, add_duplication, add_images
from linattn_ref.cli.train_encoder import add_finetune, add_mlm
from linattn_ref.cli.train_speech import add_speech

__all__ = ["add_gather", "add_tasks"]


def add_tasks(tasks: Any) -> None:
    """A command a task."""
    for add in (add_characters, add_duplication, add_images, add_mlm, add_speech, add_finetune):
        add(tasks)


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
