"""Every committed figure: drawing them again, and the gallery page that shows them."""

import importlib.util
import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linattn_ref.atomic import check_writable, write_all
from linattn_ref.experiments.publishing import catalogue, record, style, tables
from linattn_ref.experiments.publishing.catalogue import ALL, BENCHES, FIGURES, MINUTES, NEEDS
from linattn_ref.experiments.publishing.registry import MODULES
from linattn_ref.telling import Say, silent

__all__ = ["compute", "draw", "make", "save"]

SEED = 0
READING = (
    "One thread, all in turn in one process. A ratio is CPU time over that of `jit` in the same round, median and "
    "least: above 1, `jit` is the faster."
)


def make(
    only: Sequence[str] | None = None,
    *,
    out: Path = Path("figures"),
    quick: bool = False,
    style_name: str = "paper",
    workers: int = 1,
    redraw: bool = False,
    parts: Path | None = None,
    say: Say = silent,
) -> None:
    """Draw figures into ``out``, and write the gallery there.

    The tables are those of README.md and the pages with tables in the current folder, from the records in its
    ``figures``, whatever ``out`` is.

    Parameters
    ----------
    only : sequence of str, optional
        Names in the `catalogue`, or how some of them begin (``speech``: all of that task), or ``"tables"``; everything
        unless given.
    out : Path
    quick : bool
        Small figures, for a test; the tables are then left alone unless asked for.
    style_name : {"paper", "projector"}
    workers : int
        Processes, where a figure can use them.
    redraw : bool
        From the records in ``out``, or where it has none, in ``figures``: only the drawing is new, nothing is measured.
    parts : Path, optional
        A folder for the measurements of figures that take minutes, each as it comes; those that are there are taken.
    say : callable
        Called with what is done, one line per figure.

    Raises
    ------
    ValueError
        A name that is not known.
    FileNotFoundError
        The tables are to be written, and there is no README.md here; there is no record to draw from.
    """
    everything = list(FIGURES) if quick else [*ALL, "tables"]
    asked = everything if only is None else list(dict.fromkeys(name for word in only for name in _called(word)))
    names = [name for name in asked if name != "tables"]
    if "tables" in asked:
        tables.check_readme(Path("README.md"))  # first: the figures take long
    left = 0.0 if quick or redraw else sum(MINUTES.get(name, 0) for name in names)
    if left >= 1:
        say(f"{len(names)} figures, about {left:.0f} minutes on one core")
    for name in names:
        left -= MINUTES.get(name, 0)
        if redraw:
            folder = out if (out / f"{name}.json").exists() else Path("figures")
            _draw_record(record.read(folder / f"{name}.json"), out, style_name)
            say(f"{name}: {out / name}.svg, .png, .pdf, from its record")
        elif reason := _missing(name, out):
            say(f"{name}: left as it is, since {reason}")
        else:
            draw(name, out, quick=quick, style_name=style_name, workers=workers, parts=parts)
            say(f"{name}: {out / name}.svg, .png, .pdf, .json" + f"; about {left:.0f} minutes left" * (left >= 1))
    if names:
        write_all({out / "README.md": page_of(out)})
        say(f"gallery: {out / 'README.md'}")
    if "tables" in asked:
        tables.update(Path("README.md"))
        say("tables: README.md")


def _called(word: str) -> list[str]:
    """The figures of that name or, if there is none, those whose names begin so."""
    found = [word] if word in (*ALL, "tables") else [name for name in ALL if name.startswith(f"{word}_")]
    if not found:
        raise ValueError(f"only: no figure named {word}; there are {', '.join(ALL)} and tables")
    return found


def _missing(name: str, out: Path) -> str:
    """Why the figure stays as it is: packages that it needs or its record in ``out`` compares with, or a GPU; or ""."""
    file = out / f"{name}.json"
    before = record.read(file)["results"] if name in BENCHES and file.exists() else {}
    packages = dict.fromkeys((*NEEDS.get(name, ()), *before.get("versions", ())))
    if missing := [each for each in packages if None in map(importlib.util.find_spec, MODULES[each].split())]:
        extra = "cuda12" if "numba-cuda" in missing else "peers"
        return f"it needs {', '.join(missing)}, not installed here (extra {extra})"
    if name == "bench_cuda" and not importlib.import_module("torch").cuda.is_available():
        return "it needs an NVIDIA GPU"
    return ""


def draw(name: str, out: Path, *, quick: bool, style_name: str, workers: int, parts: Path | None = None) -> None:
    """Compute and draw one figure and save it with its numbers."""
    check_writable(out / f"{name}.json")  # before the minutes that it may take
    kept: dict[str, Any] = {} if parts is None else {"parts": parts / name, "resume": True}
    results = compute(name, quick=quick, workers=workers, progress=True, **kept)
    command = f"linattn-ref figures --only {name}"
    command += " --quick" * quick + f" --style {style_name}" * (style_name != "paper")
    save(name, results, out, command=command, seed=SEED, style_name=style_name)


def compute(name: str, *, seed: int = SEED, quick: bool = False, **offered: Any) -> Any:
    """The results of one figure; of what is offered its ``compute`` gets what it takes."""
    module = catalogue.module_of(name)
    taken = inspect.signature(module.compute).parameters
    kept = {"parts", "resume", "progress"} if "where" in taken else set()
    offered |= {"seed": seed, "rng": np.random.default_rng(seed), "quick": quick}
    given = {key: value for key, value in offered.items() if key in taken or key in kept}
    return module.compute(**given | (getattr(module, "QUICK", {}) if quick else {}))


def save(name: str, results: Any, out: Path, *, command: str, seed: int, style_name: str) -> list[Path]:
    """Draw what was computed, as its record has it, and save both."""
    table = {"table": ""} if name in BENCHES else {}
    return _draw_record(record.document(results, name, command=command, seed=seed, **table), out, style_name)


def _draw_record(document: dict[str, Any], out: Path, style_name: str) -> list[Path]:
    """Save the figure of a record, and this with the caption and, of a bench, the table as they are now."""
    name = document["name"]
    module, results = catalogue.module_of(name), catalogue.results_of(name, document)
    document["caption"] = catalogue.caption_of(name)
    if name in BENCHES:
        document["table"] = module.table(results)
    with style.use(style_name):
        return record.write(module.draw(results), document, out)


def page_of(folder: Path) -> str:
    """The gallery of the figures whose records are in ``folder``."""
    files = [file for name in ALL if (file := folder / f"{name}.json").exists()]
    return page([record.read(file) for file in files])


def page(records: Sequence[dict[str, Any]]) -> str:
    """The gallery as Markdown, a section per record."""
    parts = [
        "# The figures\n",
        "Written by `linattn-ref figures`, which draws them again (a bench where the packages of its record are "
        "installed). Beside each picture lie its numbers with the command, seed, versions and machine that made them "
        "(`.json`), and the drawing for print (`.pdf`) and for slides and pages (`.svg`).\n",
    ]
    for one in records:
        name, title, bench = one["name"], one["name"].replace("_", " "), []
        if "table" in one:  # which the docstring says how to read, below its first line
            told = (inspect.getdoc(catalogue.module_of(name).table) or "").partition("\n\n")[2]
            reading = " ".join(told.split()) or READING
            bench = [f"{reading}\n", f"{one['table']}\n", f"On {one['machine']['processor']}.\n"]
        made_with = ", ".join(f"{package} {version}" for package, version in one["versions"].items())
        files = ", ".join(f"[{ending}]({name}.{ending})" for ending in ("svg", "pdf", "json"))
        parts += [
            f"## {title}\n",
            f"![{title}]({name}.png)\n",
            re.sub(r"([\\`*_~<>|\[\]])", r"\\\1", one["caption"]) + "\n",
            *bench,
            f"`{one['command']}` · seed {one['seed']} · {made_with} · {files}\n",
        ]
    return "\n".join(parts)
