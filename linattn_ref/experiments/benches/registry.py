"""All benches: what each compares, how long that takes, and the options of its command.

The command line, the gallery and the tests read this list. A line of it is ``benches/bench_<name>.py``, whose
``compute`` has an argument for each option. Importing this is light: ``--help`` comes at once.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["BENCHES", "Bench", "Number"]


class Number(NamedTuple):
    """An option that is a whole number, or several; without a default the help says what it is."""

    default: int | list[int] | None
    metavar: str
    help: str
    least: int = 1
    several: bool = False  # as it is where the default is several


class Bench(NamedTuple):
    """One comparison."""

    told: str  # what the command's help says
    minutes: float  # on one core, with the numbers below
    options: Mapping[str, Number | dict[str, Any]]  # what is no number: as argparse takes it
    in_gallery: bool = True  # its figure is committed, and drawn again where the other packages are
    is_drawn: bool = True

    def figure(self, name: str) -> str:
        """What its figure is called, and its module."""
        return name if name == "resources" else f"bench_{name}"


def rounds(default: int) -> Number:
    return Number(default, "ROUNDS", "of timing")


def seed(what: str) -> Number:
    return Number(0, "SEED", f"of the {what}", least=0)


def usual(
    lengths: list[int], repeats: int, *, width: str = "D = M", of_seed: str = "inputs", **more: Number | dict[str, Any]
) -> dict[str, Number | dict[str, Any]]:
    """Options that nearly all have."""
    sizes = {
        "lengths": Number(lengths, "N", "N = L"),
        "heads": Number(8, "H", "heads"),
        "width": Number(64, "D", width),
    }
    return {**sizes, "repeats": rounds(repeats), "seed": seed(of_seed), **more}


METHODS = "such as online linear_causal (default: all; a wrong one lists them)"

# In the gallery's order.
BENCHES = {
    "softmax": Bench(
        """Compare the softmax kernel with PyTorch's on one thread; without the extra "peers", time it alone.

        CPU time, the kernels in turn in one process.""",
        0.5,
        usual(
            [512, 1024, 2048],
            7,
            dtype={"choices": ("float32", "float64"), "default": "float32", "help": "(%(default)s)"},
        ),
    ),
    "linear": Bench(
        """Compare causal linear attention with PyTorch and two other packages on one thread, if installed; minutes.

        They are fast-transformers and flash-linear-attention. CPU time, the kernels in turn in one process.""",
        5,
        usual([1024, 4096, 16384, 65536], 7, width="C = D = M")
        | {
            "no-compile": {
                "dest": "compiled",
                "action": "store_false",
                "help": "no torch.compile, which needs a compiler",
            }
        },
    ),
    "performer": Bench(
        """Compare the Performer with performer-pytorch on one thread, if that can be imported; a minute.

        CPU time, the two in turn in one process.""",
        1,
        usual([1024, 4096], 5, of_seed="inputs and directions", features=Number(256, "m", "random features")),
    ),
    "patterns": Bench(
        """Compare local, Longformer's and BigBird's attention with other packages on one thread, if installed; minutes.

        CPU time, the kernels in turn in one process.""",
        3,
        usual(
            [1024, 4096],
            5,
            of_seed="inputs and random blocks",
            window=Number(256, "W", "keys on each side"),
            block=Number(64, "B", "of BigBird"),
            drawn=Number(3, "R", "random blocks a block"),
        ),
    ),
    "reformer": Bench(
        """Compare LSH attention with Hugging Face's Reformer on one thread, if that is installed; a minute.

        CPU time, the two in turn in one process.""",
        1,
        usual(
            [1024, 4096],
            11,
            of_seed="inputs and rotations",
            rounds=Number(2, "R", "of hashing"),
            chunk=Number(64, "C", "tokens a chunk"),
        ),
    ),
    "training": Bench(
        """Compare a step of training with PyTorch's eager mode on one thread, if that is installed; three minutes.

        CPU time, the steps in turn; two threads against one, and the most memory in use.""",
        3,
        {"repeats": rounds(5), "seed": seed("start and the tokens")},
    ),
    "delta": Bench(
        """Compare the delta rule with flash-linear-attention's naive files on one thread, if installed; minutes.

        And with gated linear attention. CPU time, the kernels in turn in one process.""",
        3,
        usual([1024, 4096], 3, width="C = M"),
    ),
    "generation": Bench(
        """Compare a token of a whole network with PyTorch and fast-transformers on one thread, if installed; a minute.

        And draw images of 784 pixels, by linear attention and softmax's cache. CPU time, in turn in one process.""",
        1,
        {
            "batches": Number([1, 16], "B", "of the comparison"),
            "images": Number([1, 4, 16, 64], "B", "images at once"),
            "pixels": Number(784, "N", "of an image, a multiple of 28"),
            "repeats": rounds(21),
            "seed": seed("network and tokens"),
        },
    ),
    "drawing": Bench(
        """Time an image in five ways beside PyTorch and fast-transformers, if installed (Table 5); seven minutes.

        Networks of the paper's sizes, MNIST's and CIFAR-10's, at some positions and batch sizes. CPU time, in turn.""",
        7,
        {"rounds": rounds(3), "seed": seed("networks")},
    ),
    "speech": Bench(
        """Compare CTC and a bidirectional LSTM with PyTorch's on one thread, if that is installed; a minute.

        And time the networks of `linattn-ref train speech` against the length of utterances. CPU time, in turn.""",
        1,
        {
            "lengths": Number([100, 300, 800, 2400], "T", "frames an utterance"),
            "repeats": rounds(3),
            "seed": seed("inputs"),
        },
    ),
    "steps": Bench(
        """Time one token of each recurrent form on one thread, beside five lines of NumPy and the memory's own speed.

        CPU time, in turn in one process.""",
        0.5,
        {
            "lengths": Number([512, 4096, 16384], "N", "tokens in the cache"),
            "widths": Number([32, 64], "D", "D = M = m of the sums"),
            "heads": Number(8, "H", "heads"),
            "width": Number(32, "D", "D = M of the cache"),
            "repeats": rounds(31),
            "seed": seed("tokens"),
        },
    ),
    "encoder": Bench(
        """Compare an encoder with PyTorch and fast-transformers on one thread, if installed; seven minutes.

        12 heads, width 768, one sequence, linear and softmax, forward; the most memory in use. CPU time, in turn.""",
        7,
        {
            "layers": Number(12, "LAYERS", "layers"),
            "length": Number(4000, "N", "tokens"),
            "repeats": rounds(3),
            "seed": seed("weights and inputs"),
        },
    ),
    "cuda": Bench(
        """Compare the GPU kernels with PyTorch, flash-linear-attention and fast-transformers, if installed; minutes.

        Needs an NVIDIA GPU, PyTorch and the cuda12 or cuda13 extra. Time by CUDA events, and memory.""",
        3,
        usual([2**p for p in range(10, 21)], 10, width="C = D = M", batch=Number(1, "B", "batch")),
        in_gallery=False,
    ),
    "spectrum": Bench(
        """Compare the CPU time of `linattn-ref spectrum` with a bare loop of scipy.linalg.svdvals.

        Both go over as many matrices of the same size; imports, forward passes, baselines, workers and drawing count
        too.""",
        10,
        {
            "sentences": Number(32, "S", "sentences"),
            "length": Number(512, "N", "tokens a sentence", least=3),
            "method": {"choices": ("svd", "gram"), "default": "svd", "help": "as in `linattn-ref spectrum`"},
            "workers": Number(None, "W", "processes, of one BLAS thread each (default: all cores)"),
        },
        in_gallery=False,
        is_drawn=False,
    ),
    "resources": Bench(
        """Measure time and memory of attention against its length (Transformers are RNNs, Figure 1); ten minutes.

        CPU time on one thread, and the most memory in use at once, measured in a process for each point. Each point is
        kept as it comes.""",
        10,
        {
            "lengths": Number(None, "N", "N = L, ascending (default: 64 to 65536)", several=True),
            "methods": {"nargs": "+", "metavar": "NAME", "help": METHODS},
            "rounds": rounds(3),
            "seed": seed("inputs"),
            "resume": {"action": "store_true", "help": "go on from an interrupted run; without it, begin anew"},
        },
        in_gallery=False,  # as a bench; it is a figure
    ),
}
