"""``linattn-ref train``: what is learned by this package's own gradients. Can be stopped, and resumed."""

import argparse
import sys
from pathlib import Path
from typing import Any

from linattn_ref.cli_options import add_command, at_least

__all__ = ["add_tasks"]

QUICK = {"width": 32, "hidden": 64, "heads": 2, "layers": 1, "length": 32, "batch": 4}


def add_tasks(tasks: Any) -> None:
    """A command a task."""
    command = add_command(tasks, "characters", run_characters)
    command.set_defaults(if_interrupted="; the same command with --resume goes on from the last checkpoint")
    option = command.add_argument
    option("--out", type=Path, default=Path("out/characters"), metavar="DIR", help="(default: %(default)s)")
    option("--text", type=Path, metavar="FILE", help="UTF-8 text to learn from (default: film reviews, fetched once)")
    option("--attention", choices=("linear", "softmax"), default="linear", help="(default: %(default)s)")
    option("--steps", type=at_least(1), metavar="S", help="(default: 1000, or 40 with --quick)")
    option("--seed", type=at_least(0), default=0, help="(default: 0)")
    option("--quick", action="store_true", help="a tiny network, for a test")
    option("--resume", action="store_true", help="go on from the last checkpoint; without it, begin anew")


def run_characters(arguments: argparse.Namespace) -> None:
    """Train a small transformer to write, a character at a time, and let it.

    Writes record.jsonl (the command, seed and versions; then losses), last.safetensors and best.safetensors.
    """
    from tqdm import tqdm

    from linattn_ref.experiments.learning import characters
    from linattn_ref.training.loop import read_record

    params, model, found = characters.run(
        arguments.out,
        text=arguments.text,
        attention=arguments.attention,
        steps=arguments.steps or (40 if arguments.quick else 1000),
        seed=arguments.seed,
        shape=characters.Shape(**QUICK) if arguments.quick else characters.Shape(),
        resume=arguments.resume,
        command=arguments.command_line,
        progress=lambda steps: tqdm(steps, unit="step", file=sys.stderr, disable=None),
    )
    facts, *lines = read_record(arguments.out)
    for what, loss in facts["facts"]["yardsticks"].items():
        print(f"{what}: {loss:.3f} nats a character")
    print(f"after {lines[-1]['step']} steps: {lines[-1]['loss']:.3f} (training {lines[-1]['training_loss']:.3f})")
    print(f"\n{characters.write(params, model, found, seed=arguments.seed)}\n")
    print("wrote", *sorted(str(path) for path in arguments.out.glob("[!.]*")))
