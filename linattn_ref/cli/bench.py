"""``linattn-ref bench``: time, and memory, against a named yardstick.

A line in `BENCHES` makes the command for a module ``experiments/benches/bench_<name>.py``: its options are arguments of
the module's ``compute``.
"""

import argparse
from functools import partial
from typing import Any, NamedTuple

from linattn_ref.cli.options import add_command, add_drawing, at_least, report, say, workers_of

__all__ = ["add_benches"]


class Number(NamedTuple):
    """An option that is a whole number, or several if its default is a list."""

    name: str
    default: int | list[int]
    metavar: str
    help: str
    least: int = 1


class Bench(NamedTuple):
    """A subcommand."""

    description: str
    numbers: tuple[Number, ...]


def shared(
    lengths: list[int], *, of_seed: str = "of the inputs", of_width: str = "D = M", repeats: int
) -> tuple[Number, ...]:
    """Options that nearly all have."""
    return (
        Number("lengths", lengths, "N", "N = L"),
        Number("heads", 8, "H", "heads"),
        Number("width", 64, "D", of_width),
        Number("repeats", repeats, "ROUNDS", "of timing"),
        Number("seed", 0, "SEED", of_seed, least=0),
    )


BENCHES = {
    "softmax": Bench(
        """Compare the softmax kernel with PyTorch's on one thread; without the extra "peers", time it alone.

        CPU time, the kernels in turn in one process.""",
        shared([512, 1024, 2048], repeats=7),
    ),
    "linear": Bench(
        """Compare causal linear attention with PyTorch and two other packages on one thread, if installed; minutes.

        They are fast-transformers and flash-linear-attention. CPU time, the kernels in turn in one process.""",
        shared([1024, 4096, 16384, 65536], of_width="C = D = M", repeats=7),
    ),
    "performer": Bench(
        """Compare the Performer with performer-pytorch on one thread, if that can be imported; a minute.

        CPU time, the two in turn in one process.""",
        (
            *shared([1024, 4096], of_seed="of the inputs and directions", repeats=5),
            Number("features", 256, "m", "random features"),
        ),
    ),
    "patterns": Bench(
        """Compare local, Longformer's and BigBird's attention with other packages on one thread, if installed; minutes.

        CPU time, the kernels in turn in one process.""",
        (
            *shared([1024, 4096], of_seed="of the inputs and random blocks", repeats=5),
            Number("window", 256, "W", "keys on each side"),
            Number("block", 64, "B", "of BigBird"),
            Number("drawn", 3, "R", "random blocks a block"),
        ),
    ),
    "reformer": Bench(
        """Compare LSH attention with Hugging Face's Reformer on one thread, if that is installed; a minute.

        CPU time, the two in turn in one process.""",
        (
            *shared([1024, 4096], of_seed="of the inputs and rotations", repeats=11),
            Number("rounds", 2, "R", "of hashing"),
            Number("chunk", 64, "C", "tokens a chunk"),
        ),
    ),
    "delta": Bench(
        """Compare the delta rule with flash-linear-attention's naive files on one thread, if installed; minutes.

        And with gated linear attention. CPU time, the kernels in turn in one process.""",
        shared([1024, 4096], of_width="C = M", repeats=3),
    ),
    "steps": Bench(
        """Time one token of each recurrent form on one thread, beside five lines of NumPy and the memory's own speed.

        CPU time, in turn in one process.""",
        (
            Number("lengths", [512, 4096, 16384], "N", "tokens in the cache"),
            Number("widths", [32, 64], "D", "D = M = m of the sums"),
            Number("heads", 8, "H", "heads"),
            Number("width", 32, "D", "D = M of the cache"),
            Number("repeats", 31, "ROUNDS", "of timing"),
            Number("seed", 0, "SEED", "of the tokens", least=0),
        ),
    ),
    "generation": Bench(
        """Compare a token of a whole network with PyTorch and fast-transformers on one thread, if installed; a minute.

        And draw images of 784 pixels, by linear attention and softmax's cache. CPU time, in turn in one process.""",
        (
            Number("batches", [1, 16], "B", "of the comparison"),
            Number("images", [1, 4, 16, 64], "B", "images at once"),
            Number("pixels", 784, "N", "of an image, a multiple of 28"),
            Number("repeats", 21, "ROUNDS", "of timing"),
            Number("seed", 0, "SEED", "of the network and tokens", least=0),
        ),
    ),
    "drawing": Bench(
        """Time an image in five ways beside PyTorch and fast-transformers, if installed (Table 5); seven minutes.

        Networks of the paper's sizes, MNIST's and CIFAR-10's, at some positions and batch sizes. CPU time, in turn.""",
        (
            Number("rounds", 3, "ROUNDS", "of timing"),
            Number("seed", 0, "SEED", "of the networks", least=0),
        ),
    ),
    "speech": Bench(
        """Compare CTC and a bidirectional LSTM with PyTorch's on one thread, if that is installed; a minute.

        And time the networks of `linattn-ref train speech` against the length of utterances. CPU time, in turn.""",
        (
            Number("lengths", [100, 300, 800, 2400], "T", "frames an utterance"),
            Number("repeats", 3, "ROUNDS", "of timing"),
            Number("seed", 0, "SEED", "of the inputs", least=0),
        ),
    ),
    "training": Bench(
        """Compare a step of training with PyTorch's eager mode on one thread, if that is installed; three minutes.

        CPU time, the steps in turn; two threads against one, and the most memory in use.""",
        (
            Number("repeats", 5, "ROUNDS", "of timing"),
            Number("seed", 0, "SEED", "of the start and the tokens", least=0),
        ),
    ),
    "encoder": Bench(
        """Compare an encoder with PyTorch and fast-transformers on one thread, if installed; seven minutes.

        12 heads, width 768, one sequence, linear and softmax, forward; the most memory in use. CPU time, in turn.""",
        (
            Number("layers", 12, "LAYERS", "layers"),
            Number("length", 4000, "N", "tokens"),
            Number("repeats", 3, "ROUNDS", "of timing"),
            Number("seed", 0, "SEED", "of the weights and inputs", least=0),
        ),
    ),
    "cuda": Bench(
        """Compare the GPU kernels with PyTorch, flash-linear-attention and fast-transformers, if installed; minutes.

        Needs an NVIDIA GPU, PyTorch and the cuda12 or cuda13 extra. Time by CUDA events, and memory.""",
        (*shared([2**p for p in range(10, 21)], of_width="C = D = M", repeats=10), Number("batch", 1, "B", "batch")),
    ),
}


def add_benches(commands: Any) -> None:
    """A command a bench."""
    for name, bench in BENCHES.items():
        files = f"Prints a table, and writes bench_{name}.svg, .png, .pdf and .json."
        command = add_command(commands, name, partial(run_bench, name), f"{bench.description} {files}")
        for number in bench.numbers:
            add_number(command, number)
        if name == "softmax":
            command.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="(%(default)s)")
        if name == "linear":
            command.add_argument(
                "--no-compile", dest="compiled", action="store_false", help="no torch.compile, which needs a compiler"
            )
        add_drawing(command)
    _add_bench_spectrum(commands)
    _add_bench_resources(commands)


def add_number(command: argparse.ArgumentParser, number: Number) -> None:
    """An option for a number."""
    several = "+" if isinstance(number.default, list) else None
    command.add_argument(
        f"--{number.name}",
        type=at_least(number.least),
        nargs=several,
        default=number.default,
        metavar=number.metavar,
        help=f"{number.help} (default: %(default)s)",
    )


def run_bench(name: str, arguments: argparse.Namespace) -> None:
    """Measure, draw, print the table."""
    from linattn_ref.experiments.publishing.catalogue import module_of

    module = module_of(f"bench_{name}")
    options = (*(number.name for number in BENCHES[name].numbers), "dtype", "compiled")
    results = module.compute(**{option: getattr(arguments, option) for option in options if option in arguments})
    report(f"bench_{name}", results, arguments)


# --- Those that are not like the others -----------------------------------------------------------------------------


def run_bench_spectrum(arguments: argparse.Namespace) -> None:
    """Compare the CPU time of `linattn-ref spectrum` with a bare loop of scipy.linalg.svdvals.

    Both go over as many matrices of the same size; imports, forward passes, baselines, workers and drawing count too.
    """
    from linattn_ref.experiments.benches import bench_spectrum

    results = bench_spectrum.compute(
        sentences=arguments.sentences, length=arguments.length, workers=workers_of(arguments), method=arguments.method
    )
    say(bench_spectrum.table(results))


def _add_bench_spectrum(commands: Any) -> None:
    command = add_command(commands, "spectrum", run_bench_spectrum)
    add_number(command, Number("sentences", 32, "S", "sentences"))
    add_number(command, Number("length", 512, "N", "tokens a sentence", least=3))
    option = command.add_argument
    option("--method", choices=("svd", "gram"), default="svd", help="as in `linattn-ref spectrum`")
    option("--workers", type=at_least(1), metavar="W", help="processes, of one BLAS thread each (default: all cores)")


def run_bench_resources(arguments: argparse.Namespace) -> None:
    """Measure time and memory of attention against its length (Transformers are RNNs, Figure 1); ten minutes.

    CPU time on one thread, and the most memory in use at once, measured in a process for each point. Prints tables,
    and writes resources.svg, .png, .pdf and .json, and each point as it comes.
    """
    from linattn_ref.experiments.cost import resources

    results = resources.compute(
        lengths=arguments.lengths or resources.LENGTHS,
        methods=arguments.methods or tuple(resources.METHODS),
        rounds=arguments.rounds,
        seed=arguments.seed,
        parts=arguments.out / "resources-parts",
        resume=arguments.resume,
        progress=True,
    )
    report("resources", results, arguments)


def _add_bench_resources(commands: Any) -> None:
    command = add_command(commands, "resources", run_bench_resources)
    command.set_defaults(if_interrupted="; what is done is kept: the same command with --resume goes on from there")
    option = command.add_argument
    option("--lengths", type=at_least(1), nargs="+", metavar="N", help="N = L, ascending (default: 64 to 65536)")
    option(
        "--methods",
        nargs="+",
        metavar="NAME",
        help="such as online linear_causal (default: all; a wrong one lists them)",
    )
    add_number(command, Number("rounds", 3, "ROUNDS", "of timing"))
    add_number(command, Number("seed", 0, "SEED", "of the inputs", least=0))
    option("--resume", action="store_true", help="go on from an interrupted run; without it, begin anew")
    add_drawing(command)
