"""``linattn-ref bench``: time, and memory, against a named yardstick. The list is `experiments.benches.registry`."""

import argparse
import inspect
from functools import partial
from typing import Any

from linattn_ref.cli.options import add_command, add_drawing, at_least, report, say, tell, workers_of
from linattn_ref.experiments.benches.registry import BENCHES, Number

__all__ = ["add_benches"]


def add_benches(commands: Any) -> None:
    """A command a bench."""
    for name, bench in BENCHES.items():
        files = f"Prints a table, and writes {bench.figure(name)}.svg, .png, .pdf and .json." if bench.is_drawn else ""
        command = add_command(commands, name, partial(run_bench, name), f"{bench.told} {files}")
        for option, given in bench.options.items():
            if isinstance(given, Number):
                add_number(command, option, given)
            else:
                command.add_argument(f"--{option}", **given)
        if "resume" in bench.options:
            kept = "; what is done is kept: the same command with --resume goes on from there"
            command.set_defaults(if_interrupted=kept)
        if bench.is_drawn:
            add_drawing(command)


def add_number(command: argparse.ArgumentParser, name: str, number: Number) -> None:
    """An option for a number."""
    several = "+" if number.several or isinstance(number.default, list) else None
    told = number.help if number.default is None else f"{number.help} (default: %(default)s)"
    kind = at_least(number.least)
    command.add_argument(
        f"--{name}", type=kind, nargs=several, default=number.default, metavar=number.metavar, help=told
    )


def run_bench(name: str, arguments: argparse.Namespace) -> None:
    """Measure, draw, print the table."""
    from linattn_ref.experiments.publishing.catalogue import module_of

    bench = BENCHES[name]
    module, figure = module_of(bench.figure(name)), bench.figure(name)
    given = {option: x for option, x in vars(arguments).items() if x is not None}
    if "workers" in bench.options:
        given["workers"] = workers_of(arguments)
    if "resume" in bench.options:
        given |= {"parts": arguments.out / f"{figure}-parts", "progress": True}
    tell(f"bench {name}: about {bench.minutes:g} minutes on one core, if no option says otherwise")
    results = module.compute(**{x: given[x] for x in inspect.signature(module.compute).parameters if x in given})
    if bench.is_drawn:
        report(figure, results, arguments)
    else:
        say(module.table(results))
