"""``linattn-ref bench``: time, and memory, against a named yardstick. The list is `experiments.publishing.registry`."""

import argparse
import ast
import importlib.metadata
import inspect
import re
from functools import partial
from pathlib import Path
from typing import Any

from linattn_ref import experiments
from linattn_ref.atomic import check_writable
from linattn_ref.cli.options import KEPT, add_command, add_drawing, at_least, given, report, say, tell, workers_of
from linattn_ref.experiments.publishing.registry import BENCHES, Bench

__all__ = ["add"]


def add(commands: Any) -> None:
    """A command per bench."""
    parser = commands.add_parser("bench", help="measure time against a named peer")
    kinds = parser.add_subparsers(title="what", required=True, metavar="WHAT")
    for name, bench in BENCHES.items():
        figure = bench.figure(name)
        compute = compute_of(figure)
        doc = inspect.cleandoc(ast.get_docstring(compute) or "")
        files = f" Prints a table, and writes {figure}.svg, .png, .pdf and .json." if bench.is_drawn else ""
        takes = f" {takes_of(bench)}." if bench.minutes >= 1 else ""
        told = f"{doc.partition('Parameters' + chr(10))[0].strip()}{files}{takes}"
        command = add_command(kinds, name, partial(run_bench, name, bench), told)
        add_options(command, compute, described(doc), bench)
        if bench.peers:
            command.add_argument("--peer", action="store_true", help="list its peers, installed or not, and end")
        if bench.is_drawn:
            add_drawing(command)


def compute_of(figure: str) -> ast.FunctionDef:
    """The function of that name in a figure's module, which is not imported: ``--help`` comes at once."""
    (file,) = Path(experiments.__path__[0]).glob(f"*/{figure}.py")
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == "compute")


def described(doc: str) -> dict[str, tuple[str, str]]:
    """What a docstring says of parameters: their type, and what they are."""
    entries = re.findall(r"^(\w+) : (.+)\n((?:    .+\n?)+)", doc, re.MULTILINE)
    return {name: (kind, " ".join(text.replace("`", "").replace("%", "%%").split())) for name, kind, text in entries}


def add_options(command: argparse.ArgumentParser, compute: ast.FunctionDef, told: dict[str, Any], bench: Bench) -> None:
    """An option for each argument that is a number, a word, yes or no, or several of these."""
    if compute.args.kwarg is not None:  # where measurements are kept
        command.add_argument("--resume", action="store_true", help="resume an interrupted run; without it, start over")
        command.set_defaults(if_interrupted=KEPT)
    for argument, node in zip(compute.args.kwonlyargs, compute.args.kw_defaults, strict=True):
        name = argument.arg
        kind, text = told.get(name, ("", ""))
        try:
            default = None if name == "workers" else bench.defaults.get(name) or ast.literal_eval(node or "None")
        except ValueError:  # it has a name
            default = None
        option: dict[str, Any] = {"default": default, "help": text}
        if default is not None:
            shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
            option["help"] = f"{text.removesuffix('.')} (default: {shown})"
        word = name.replace("_", "-")
        if kind.startswith("{"):
            option["choices"] = ast.literal_eval(f"({kind[1:-1]},)")
        elif kind == "bool":
            command.add_argument(f"--no-{word}", dest=name, action="store_false", help=f"leave out: {text}")
            continue
        elif kind.endswith("int"):
            option |= {"type": at_least(0 if name == "seed" else 1), "metavar": "N"}
        elif kind != "sequence of str":
            continue
        command.add_argument(f"--{word}", nargs="+" if kind.startswith("sequence") else None, **option)


def installed(peer: str) -> str:
    """The version of a package, or how to install it."""
    try:
        return importlib.metadata.version(peer)
    except importlib.metadata.PackageNotFoundError:
        return f"not installed (pip install {peer})"


def takes_of(bench: Bench) -> str:
    """How long it takes, in words."""
    return f"About {bench.minutes:g} minute{'s' * (bench.minutes != 1)}"


def run_bench(name: str, bench: Bench, arguments: argparse.Namespace) -> None:
    """Measure, draw, print the table; or only list the peers."""
    if getattr(arguments, "peer", False):
        return say("\n".join(f"{peer}: {installed(peer)}" for peer in bench.peers))
    from linattn_ref.experiments.publishing.catalogue import module_of

    module, figure = module_of(bench.figure(name)), bench.figure(name)
    where: dict[str, Any] = {"workers": workers_of(arguments)} if "workers" in arguments else {}
    if "resume" in arguments:
        where |= {"parts": arguments.out / f"{figure}-parts", "resume": arguments.resume, "progress": True}
    if bench.is_drawn:
        check_writable(arguments.out / f"{figure}.json")
    if bench.minutes >= 1:
        tell(f"bench {name}: {takes_of(bench)}, if no option says otherwise")
    results = module.compute(**given(module.compute, arguments) | where)
    if bench.is_drawn:
        report(figure, results, arguments)
    else:
        say(module.table(results))
