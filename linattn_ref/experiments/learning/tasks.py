"""What ``linattn-ref train`` can learn: the tasks by their names, each with its options.

The command line, README's tests and the tests of all tasks read this list. It imports nothing, so that ``--help`` comes
at once. The rest of a task is in the module of its name: a ``Shape``, and ``begin``, which takes the options and makes
it ready for `learn.run`. Of an option that is not given ``begin`` and ``Shape`` have the default, as its help says.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from linattn_ref.experiments.learning.encoder_names import TITLES

__all__ = ["CAUSAL", "HEARING", "QUICK_STEPS", "TASKS", "Option", "Task"]

CAUSAL = ("softmax", "linear", "lsh-1", "lsh-4", "performer", "local")
HEARING = ("lstm", "softmax", "linear", "lsh-4", "lsh-1")
QUICK_STEPS = 40


class Option(NamedTuple):
    """What may be chosen."""

    name: str  # an argument of ``begin``, or a field of ``Shape``
    kind: Any  # the least whole number, or a type, or a tuple of what there is to choose from; bool: yes or no
    metavar: str | None
    help: str
    flag: str | None = None  # unless it is the name

    @property
    def word(self) -> str:
        return self.flag or f"--{self.name.replace('_', '-')}"


class Task(NamedTuple):
    """What is to be said of a task before it is loaded."""

    about: str  # the first line of its help
    writes: str  # the rest
    attention: tuple[str, ...]
    default: str  # of these
    steps: int
    options: tuple[Option, ...]
    quick: Mapping[str, Any]  # in place of the defaults, with --quick


def sizes(width: int, hidden: int | None, heads: int, layers: int) -> tuple[Option, ...]:
    """Of a network, by their defaults."""
    found = [Option("width", 2, "E", f"(default: {width})")]
    if hidden is not None:
        found.append(Option("hidden", 1, "F", f"width within the feed-forward layers (default: {hidden})"))
    return (
        *found,
        Option("heads", 1, "H", f"(default: {heads})"),
        Option("layers", 1, "L", f"(default: {layers})"),
    )


TEXT = Option("text", Path, "FILE", "UTF-8 text to learn from (default: film reviews, fetched once)")
PRICE = (
    Option("k", 1, "K", "keys, mixtures or features a query (default: 64, or a quarter of the length with --quick)"),
    Option(
        "sharing",
        ("none", "headwise", "key_value", "layerwise"),
        None,
        "of linformer's projections (default: headwise)",
    ),
)
RECORD = "Writes record.jsonl (the command, seed and versions; then losses), "

TASKS = {
    "characters": Task(
        "Train a small transformer to write, a character at a time, and let it.",
        f"{RECORD}last.safetensors and best.safetensors.",
        ("linear", "softmax"),
        "linear",
        1000,
        (TEXT,),
        {"width": 32, "hidden": 64, "heads": 2, "layers": 1, "length": 32, "batch": 4},
    ),
    "duplication": Task(
        'Train a small transformer to copy a word ("Transformers are RNNs", section 4.1.1).',
        f"{RECORD}times.jsonl and the checkpoints.",
        CAUSAL,
        "linear",
        10_000,
        (
            Option("length", 5, "S", "places (default: 68, for words of 17 to 32 symbols)"),
            *sizes(64, None, 2, 2),
            Option("batch", 1, "B", "sequences a step (default: 32)"),
            Option(
                "reduce_after",
                1,
                "S",
                "steps after which the rate is divided by ten"
                " (default: eight tenths of all; in the paper's code: 3000)",
            ),
        ),
        {"width": 16, "layers": 1, "length": 12, "batch": 4},
    ),
    "images": Task(
        'Train a small transformer to draw digits, a pixel at a time ("Transformers are RNNs", section 4.2).',
        f"{RECORD}times.jsonl and the checkpoints.",
        CAUSAL,
        "linear",
        4000,
        (
            Option("collection", ("mnist", "cifar-10"), None, "(default: mnist)"),
            Option("data", Path, "DIR", "the original files (default: MNIST's, fetched once)"),
            Option("head", ("softmax", "mixture"), None, "what is said of a pixel (default: softmax)"),
            *sizes(64, 256, 2, 4),
            Option("batch", 1, "B", "images a step (default: 8)"),
            Option(
                "peak",
                float,
                "RATE",
                "the highest rate (default: 0.003; of the networks that come with the package: 0.004)",
            ),
            Option(
                "start_from",
                Path,
                "FILE",
                "weights of another run, with another seed, to go on from, for instance:"
                " --start out/images/last.safetensors --seed 1 --out out/images-on",
                "--start",
            ),
            Option("every", 1, "S", "steps from one evaluation to the next (default: 500)"),
        ),
        {"width": 16, "hidden": 32, "layers": 1, "batch": 2, "cut": 8, "every": 20},
    ),
    "mlm": Task(
        "Train a small bidirectional transformer to say which tokens were hidden (Linformer, Figure 3).",
        f"{RECORD}tokenizer.json, times.jsonl and the checkpoints.",
        tuple(TITLES),
        "softmax",
        2000,
        (
            TEXT,
            Option("length", 8, "N", "tokens a sequence (default: 512)"),
            Option("tokens", 8, "S", "a step, in sequences of that length (default: 8192)"),
            *PRICE,
            Option("pooled", bool, None, "linformer's projections begin as mean pooling; drawn, otherwise"),
            Option("own_rate", float, "R", "of linformer's projections, times the others' (default: 1 / N)"),
            Option("drawn", bool, None, "the network begins as drawn; its heads look beside, otherwise"),
            *sizes(128, 512, 4, 4),
            Option("peak", float, "RATE", "the highest learning rate (default: 0.002)"),
            Option("vocabulary", 260, "V", "pieces of the vocabulary (default: 8000)"),
        ),
        {
            "width": 32,
            "hidden": 64,
            "heads": 2,
            "layers": 2,
            "length": 64,
            "tokens": 512,
            "vocabulary": 500,
            "k": 0,
            "cut": 300,
        },
    ),
    "speech": Task(
        'Train a small network to say which phonemes it hears ("Transformers are RNNs", section 4.3).',
        'The speech is synthesised by eSpeak NG (the extra "speech"), unless recordings are given. '
        f"{RECORD}result.json (error rates on the test part), times.jsonl, the checkpoints.",
        HEARING,
        "linear",
        10_000,
        (
            Option("data", Path, "DIR", "recordings, as TIMIT or LibriSpeech has them (default: synthesised)"),
            Option("width", 2, "E", "and the units of an LSTM in each direction (default: 128)"),
            Option("heads", 1, "H", "(default: 4)"),
            Option("layers", 1, "L", "of a transformer (default: 4)"),
            Option("peak", float, "RATE", "the first, and highest, learning rate (default: 0.002)"),
        ),
        {"width": 16, "hidden": 32, "heads": 2, "layers": 1, "frames": 400, "lstms": 1, "cut": 2},
    ),
    "finetune": Task(
        "Train a pretrained BERT to tell praise from blame, with any mechanism in its layers (Linformer, Table 2).",
        f"{RECORD}result.json (accuracy on the test part), times.jsonl and the checkpoints.",
        tuple(TITLES),
        "softmax",
        500,
        (
            Option("model", Path, "DIR", "a BERT or RoBERTa (default: all-MiniLM-L6-v2, fetched once)"),
            Option("data", Path, "FILE", "CSV of text, label, source (default: film reviews, fetched once)"),
            Option("source", str, None, "of the texts: imdb, rotten_tomatoes (default: imdb)"),
            Option("start_from", Path, "DIR", "go on from what a run with softmax attention has learned", "--start"),
            Option("length", 8, "N", "tokens a text (default: 128)"),
            *PRICE,
            Option("fitted", bool, None, "linformer's E and F begin fitted to the network, not as mean pooling"),
            Option("examples", 1, "S", "texts to learn from (default: 8000)"),
            Option("batch", 1, "B", "texts a step (default: 16)"),
            Option("watched", 1, "S", "validation texts at each evaluation (default: 100)"),
            Option("tested", 1, "S", "test texts in the end (default: 500)"),
            Option("peak", float, "RATE", "the highest learning rate (default: 0.0001)"),
        ),
        {"length": 32, "batch": 4, "examples": 64, "watched": 32, "tested": 32, "k": 0},
    ),
}
