"""``linattn-ref conform``: is somebody's kernel right?"""

import argparse
import ast
import json
import math
import tomllib
from pathlib import Path
from typing import Any

from linattn_ref import atomic
from linattn_ref.cli.options import add_command, at_least, check_modes, file_of, say, tell

__all__ = ["add"]

# What is done instead of judging a target, and which options that uses.
MODES: dict[str, tuple[str, ...]] = {"list": (), "confusion": (), "write": ("op", "full"), "read": ("json", "html")}
WORDS = {"target": "TARGET", "names": "--map", "given": "--give", "declares": "--declare"}  # other words than the names
# What a conform.toml holds, but for words.
KINDS: dict[str, tuple[Any, str]] = {"names": (dict, "a table of words"), "declares": (list, "a list")}
KINDS |= dict.fromkeys(("fixed", "given"), (dict, "a table"))


def run_conform(arguments: argparse.Namespace) -> int:
    """Judge an attention kernel: its output, gradients, states, masks and edges, against the pages in float64.

    TARGET is module:function or file.py:function, of NumPy, PyTorch, JAX or CuPy; or module:forward,backward, a pair;
    or a module that has both. It is called with the pages' names of arguments. A conform.toml next to file.py says
    where it differs, as the options --map to --device do; if it has a table of the function's name (of a pair, the
    first one's), that one.

    Exit status 0: all that is offered passes. 1: a check fails. 2: nothing could be run, or nothing that was asked
    for is offered.
    """
    from linattn_ref.conform import files
    from linattn_ref.conform.checks import CHECKS
    from linattn_ref.conform.questions import OPS
    from linattn_ref.conform.report import NOT_OFFERED, Report
    from linattn_ref.conform.run import names_of, run_apart

    check_modes(arguments, MODES, WORDS)
    if arguments.read and arguments.json and arguments.json.resolve() == (arguments.read / "manifest.json").resolve():
        raise ValueError(f"--json: {arguments.json} is the manifest of the cases that are read")
    for path in filter(None, (arguments.json, arguments.html, arguments.confusion)):
        atomic.check_writable(path)  # before minutes of judging
    if arguments.list:
        for each in CHECKS.values():
            say(f"{each.name}: {each.why}")
        return 0
    if arguments.confusion:
        save_confusion(arguments.confusion, arguments.command_line)
        say("wrote", arguments.confusion)
        return 0
    if arguments.write:
        written = files.write(arguments.write, (arguments.op,) if arguments.op else tuple(OPS), arguments.full)
        size = sum(path.stat().st_size for path in written)
        say(f"wrote {len(written) - 1} cases and manifest.json to {arguments.write}, {size / 1e6:.1f} MB")
        return 0
    if arguments.read:
        report = files.read(arguments.read)
    else:
        if not arguments.target or not arguments.op:
            raise ValueError("expected TARGET and --op, or --write, --read, --confusion or --list")
        mapping = mapping_of(arguments).checked(arguments.op)
        names = names_of(arguments.op, tuple(arguments.only or ()))
        judged, outcomes = (arguments.target, arguments.op, arguments.dtype or "float32"), []
        how = {"full": arguments.full, "seed": arguments.seed or 0, "timeout": arguments.timeout or 600.0}
        for outcome in run_apart(*judged, mapping, names, **how):
            outcomes.append(outcome)
            tell(f"{len(outcomes)}/{len(names)} {outcome.name}: {outcome.verdict}")
        report = Report(*judged, tuple(outcomes))
    say(report)
    for path, page in ((arguments.json, False), (arguments.html, True)):
        if path:
            report.save(path, page)
            say("wrote", path)
    if all(outcome.verdict == NOT_OFFERED for outcome in report.outcomes):
        return 2
    return 0 if report.ok else 1


def save_confusion(path: Path, command: str) -> None:
    """Write which planted mistakes are taken for which, and what that was made with."""
    from linattn_ref.conform import faults
    from linattn_ref.experiments.publishing.record import versions

    fits = {"shapes": faults.SHAPES, "fits": faults.confusion()}
    said = {"command": command, "versions": versions(("numpy",)), **fits}
    atomic.write_all({path: json.dumps(said, indent=1) + "\n"})


def mapping_of(arguments: argparse.Namespace) -> Any:
    """How the target wants to be called: what ``conform.toml`` says, and the options over it."""
    from linattn_ref.conform.target import Mapping, NotATarget

    place, _, function = arguments.target.partition(":")
    path = arguments.toml or (Path(place).with_name("conform.toml") if place.endswith(".py") else None)
    said: dict[str, Any] = {}
    if path is not None and (arguments.toml or path.is_file()):
        try:
            said = tomllib.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:  # no TOML, or not UTF-8
            raise NotATarget(f"{path}: {error}") from None
        tables = {name: x for name, x in said.items() if isinstance(x, dict) and name not in Mapping._fields}
        said = {name: x for name, x in said.items() if name not in tables}
        asked = next((name for name in (function, function.partition(",")[0]) if name in tables), None)
        if asked is None and tables and not said and arguments.toml:
            expected = f"a table [{function}]" if function else "words outside of tables, for a module"
            raise NotATarget(f"{path}: expected {expected}, got {', '.join(tables)}")
        said = said if asked is None else tables[asked]
    unknown = {*said} - {*Mapping._fields}
    if unknown:
        raise NotATarget(f"{path}: expected {', '.join(Mapping._fields)}, got {', '.join(sorted(unknown))}")
    for field, x in said.items():
        kind, told = KINDS.get(field, (str, "a word"))
        if not isinstance(x, kind) or (field == "names" and not all(isinstance(name, str) for name in x.values())):
            raise NotATarget(f"{path}: {field}: expected {told}, got {x!r}")
    for field in ("names", "fixed", "given"):
        said[field] = said.get(field, {}) | dict(getattr(arguments, field) or ())
    said["declares"] = (*said.get("declares", ()), *(arguments.declares or ()))
    fields = ("layout", "mask", "gate", "state", "widths", "arrays", "device")
    said |= {field: x for field in fields if (x := getattr(arguments, field))}
    return Mapping(**said)


def seconds(word: str) -> float:
    """An option's type: a number above 0; above ten days, ten days."""
    try:
        found = float(word)
    except ValueError:
        found = math.nan
    if not (found > 0 and math.isfinite(found)):
        raise argparse.ArgumentTypeError(f"expected a finite number above 0, got {word!r}")
    return min(found, 864_000.0)


def pair(word: str) -> tuple[str, Any]:
    """An option's type: ``name=value``, the value in Python's notation where it is one."""
    name, equals, value = word.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"expected name=value, got {word!r}")
    try:
        return name, ast.literal_eval({"true": "True", "false": "False", "none": "None"}.get(value, value))
    except (SyntaxError, ValueError):
        return name, value


def add(commands: Any) -> None:
    """The command and its options."""
    option = add_command(commands, "conform", run_conform).add_argument
    option("target", nargs="?", metavar="TARGET", help="module:function, file.py:function, or a pair of functions")
    operations = "softmax", "linear", "gated_linear", "delta", "gated_delta"
    option("--op", choices=operations, help="the operation that it computes")
    option("--dtype", help="dtype of its inputs: float64, float32, float16 or bfloat16 (default: float32)")
    option("--only", nargs="+", metavar="CHECK", help="run only these checks (--list names them)")
    option("--full", action="store_true", help="run more sizes")
    option("--seed", type=at_least(0), help="seed of the inputs (default: 0)")
    option("--timeout", type=seconds, metavar="S", help="seconds that a check may take (default: 600)")
    option("--map", dest="names", nargs="+", type=pair, metavar="OURS=THEIRS", help="names of arguments: log_gate=g")
    told = "options built into it, so not passed: scale=1.0 causal=true"
    option("--fixed", nargs="+", type=pair, metavar="OPTION=VALUE", help=told)
    told = "extra arguments that it is always passed; @module and @module:name are what they name"
    option("--give", dest="given", nargs="+", type=pair, metavar="NAME=VALUE", help=told)
    option("--declare", dest="declares", nargs="+", metavar="OPTION", help="options that its signature does not show")
    option("--layout", choices=("BHND", "BNHD", "packed"), help="layout of arrays of tokens (default: BHND)")
    option("--mask", choices=("BHL", "BL"), help="whether masks have heads (default: BHL)")
    option("--gate", choices=("head", "channel"), help="one number per head, or per channel (default: head)")
    option("--state", choices=("CM", "MC"), help="MC: its states are transposed")
    option("--widths", choices=("any", "same"), help="same: its values have to be as wide as its keys")
    told = "library of its arrays (default: what its module imports)"
    option("--arrays", choices=("numpy", "torch", "jax", "cupy"), help=told)
    option("--device", help="device of PyTorch and JAX (default: cpu)")
    option("--toml", type=Path, metavar="FILE", help="a mapping (default: conform.toml next to file.py)")
    option("--json", type=file_of(".json"), metavar="FILE.json", help="write the report")
    told = "write the report as a page, with the errors by token and by gate"
    option("--html", type=file_of(".html", ".htm"), metavar="FILE.html", help=told)
    option("--write", type=Path, metavar="DIR", help="write cases as files, for kernels in other languages")
    option("--read", type=Path, metavar="DIR", help="judge the answers written next to them")
    told = "plant every mistake, and write which are taken for which"
    option("--confusion", type=file_of(".json"), metavar="FILE.json", help=told)
    option("--list", action="store_true", help="list the checks, and why they exist")
