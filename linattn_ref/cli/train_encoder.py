"""``linattn-ref train`` of networks that read a whole text: hidden tokens, a pretrained BERT."""

import argparse
import math
from pathlib import Path
from typing import Any

from linattn_ref.cli.options import at_least, say
from linattn_ref.cli.task import add_price, add_task, common, k_of, say_files, shape_of
from linattn_ref.experiments.learning.encoder_names import TITLES

__all__ = ["ENCODER", "add_finetune", "add_mlm"]

ENCODER = tuple(TITLES)


def add_mlm(tasks: Any) -> None:
    """The options of :func:`run_mlm`."""
    option = add_task(tasks, "mlm", run_mlm, attention=ENCODER, steps=2000, default="softmax")
    option("--text", type=Path, metavar="FILE", help="UTF-8 text to learn from (default: film reviews, fetched once)")
    option("--length", type=at_least(8), metavar="N", help="tokens a sequence (default: 512)")
    option("--tokens", type=at_least(8), metavar="S", help="a step, in sequences of that length (default: 8192)")
    add_price(option)
    option("--pooled", action="store_true", help="linformer's projections begin as mean pooling; drawn, otherwise")
    option("--own-rate", type=float, metavar="R", help="of linformer's projections, times the others' (default: 1 / N)")
    option("--drawn", action="store_true", help="the network begins as drawn; its heads look beside, otherwise")
    option("--width", type=at_least(2), metavar="E", help="(default: 128)")
    option("--hidden", type=at_least(1), metavar="F", help="width within the feed-forward layers (default: 512)")
    option("--heads", type=at_least(1), metavar="H", help="(default: 4)")
    option("--layers", type=at_least(1), metavar="L", help="(default: 4)")
    option("--peak", type=float, default=2e-3, metavar="RATE", help="the highest learning rate (default: %(default)s)")
    option("--vocabulary", type=at_least(260), metavar="V", help="pieces of the vocabulary (default: 8000)")


def run_mlm(arguments: argparse.Namespace) -> None:
    """Train a small bidirectional transformer to say which tokens were hidden (Linformer, Figure 3).

    Writes record.jsonl (the command, seed and versions; then losses), tokenizer.json, times.jsonl and the checkpoints.
    """
    from linattn_ref.experiments.learning import mlm, runs

    quick = {"width": 32, "hidden": 64, "heads": 2, "layers": 2, "length": 64, "tokens": 512, "vocabulary": 500}
    shape = shape_of(mlm.Shape(), arguments, **quick)
    mlm.run(
        arguments.out,
        text=arguments.text,
        k=k_of(arguments, shape.length),
        sharing=arguments.sharing,
        pooled=arguments.pooled,
        own_rate=arguments.own_rate,
        drawn=arguments.drawn,
        shape=shape,
        peak=arguments.peak,
        cut=300 if arguments.quick else None,
        **common(arguments),
    )
    run = runs.read(arguments.out)
    for what, loss in run.facts["yardsticks"].items():
        say(f"{what}: perplexity {math.exp(loss):.1f}")
    say(
        f"{arguments.attention}, after {run.steps[-1]} steps and {run.cpu_seconds[-1]:.0f} CPU seconds:"
        f" perplexity {math.exp(run.curves['loss'][-1]):.1f}, {run.curves['accuracy'][-1]:.1%} of the hidden right"
    )
    say_files(arguments.out)


def add_finetune(tasks: Any) -> None:
    """The options of :func:`run_finetune`."""
    option = add_task(tasks, "finetune", run_finetune, attention=ENCODER, steps=500, default="softmax")
    option("--model", type=Path, metavar="DIR", help="a BERT or RoBERTa (default: all-MiniLM-L6-v2, fetched once)")
    option("--data", type=Path, metavar="FILE", help="CSV of text, label, source (default: film reviews, fetched once)")
    option("--source", default="imdb", help="of the texts: imdb, rotten_tomatoes (default: imdb)")
    option("--start", type=Path, metavar="DIR", help="go on from what a run with softmax attention has learned")
    option("--length", type=at_least(8), metavar="N", help="tokens a text (default: 128)")
    add_price(option)
    option("--fitted", action="store_true", help="linformer's E and F begin fitted to the network, not as mean pooling")
    option("--examples", type=at_least(1), metavar="S", help="texts to learn from (default: 8000)")
    option("--batch", type=at_least(1), metavar="B", help="texts a step (default: 16)")
    option("--watched", type=at_least(1), metavar="S", help="validation texts at each evaluation (default: 100)")
    option("--tested", type=at_least(1), metavar="S", help="test texts in the end (default: 500)")
    option("--peak", type=float, default=1e-4, metavar="RATE", help="the highest learning rate (default: %(default)s)")


def run_finetune(arguments: argparse.Namespace) -> None:
    """Train a pretrained BERT to tell praise from blame, with any mechanism in its layers (Linformer, Table 2).

    Writes record.jsonl (the command, seed and versions; then losses), result.json (accuracy on the test part),
    times.jsonl and the checkpoints.
    """
    from linattn_ref.experiments.learning import finetune

    quick = {"length": 32, "batch": 4, "examples": 64, "watched": 32, "tested": 32}
    shape = shape_of(finetune.Shape(), arguments, **quick)
    result = finetune.run(
        arguments.out,
        model=arguments.model,
        data=arguments.data,
        source=arguments.source,
        k=k_of(arguments, shape.length),
        sharing=arguments.sharing,
        fitted=arguments.fitted,
        start=arguments.start,
        peak=arguments.peak,
        shape=shape,
        **common(arguments),
    )
    for when in ("before", "after"):
        if found := result[when]:
            low, high = found["interval"]
            say(f"{when} training: {found['accuracy']:.1%} of {result['texts']} test texts ({low:.1%} to {high:.1%})")
    say_files(arguments.out)
