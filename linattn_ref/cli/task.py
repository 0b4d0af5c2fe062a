"""What the tasks of ``linattn-ref train`` have in common."""

import argparse
import contextlib
import sys
from functools import partial
from pathlib import Path
from typing import Any

from linattn_ref.cli.options import add_command, at_least, say

__all__ = ["QUICK_STEPS", "add_price", "add_task", "common", "k_of", "say_files", "shape_of"]

QUICK_STEPS = 40
K = 64


def add_task(
    tasks: Any, name: str, run: Any, *, attention: tuple[str, ...], steps: int, default: str = "linear"
) -> Any:
    """What every task has; returns the function that adds another option."""
    command = add_command(tasks, name, run)
    command.set_defaults(if_interrupted="; the same command with --resume goes on from the last checkpoint")
    command.set_defaults(all_steps=steps, run=partial(_run_alone, run))
    option = command.add_argument
    option("--out", type=Path, default=Path("out") / name, metavar="DIR", help="(default: %(default)s)")
    option("--attention", choices=attention, default=default, help="(default: %(default)s)")
    option("--steps", type=at_least(1), metavar="S", help=f"(default: {steps}, or {QUICK_STEPS} with --quick)")
    option("--seed", type=at_least(0), default=0, help="(default: 0)")
    option("--quick", action="store_true", help="a tiny network, for a test")
    option("--resume", action="store_true", help="go on from the last checkpoint there; an ended run, with more steps")
    return option


def _run_alone(run: Any, arguments: argparse.Namespace) -> None:
    """The task, while no other run may write where it does; it reads for minutes before it trains."""
    from linattn_ref.training import folder

    out, is_new = arguments.out, not arguments.out.exists()
    folder.check_folder(out, resume=arguments.resume)
    with folder.alone(out):
        try:
            run(arguments)
        except BaseException:
            if is_new and [*out.iterdir()] == [out / folder.LOCK]:  # nothing was begun
                with contextlib.suppress(OSError):
                    (out / folder.LOCK).unlink()
                    out.rmdir()
            raise


def add_price(option: Any) -> None:
    """What a mechanism may cost, and how Linformer's projections are shared."""
    told = f"keys, mixtures or features a query (default: {K}, or a quarter of the length with --quick)"
    option("--k", type=at_least(1), help=told)
    option(
        "--sharing",
        choices=("none", "headwise", "key_value", "layerwise"),
        default="headwise",
        help="of linformer's projections (default: %(default)s)",
    )


def k_of(arguments: argparse.Namespace, length: int) -> int:
    """The price asked for, or one that fits."""
    return arguments.k or (max(8, length // 4) if arguments.quick else K)  # 8: the least that every mechanism takes


def common(arguments: argparse.Namespace) -> dict[str, Any]:
    """Those options as a task's ``run`` takes them."""
    from tqdm import tqdm

    return {
        "attention": arguments.attention,
        "steps": arguments.steps or (QUICK_STEPS if arguments.quick else arguments.all_steps),
        "seed": arguments.seed,
        "resume": arguments.resume,
        "command": arguments.command_line,
        "progress": lambda steps: tqdm(steps, unit="step", file=sys.stderr, disable=None),
    }


def shape_of(shape: Any, arguments: argparse.Namespace, **quick: int) -> Any:
    """The default shape, or the quick one, with what the options say."""
    chosen = {name: getattr(arguments, name, None) for name in shape._fields}
    return shape._replace(**(quick if arguments.quick else {}))._replace(
        **{name: value for name, value in chosen.items() if value is not None}
    )


def say_files(out: Path) -> None:
    say("wrote", *sorted(str(path) for path in out.glob("[!.]*")))
