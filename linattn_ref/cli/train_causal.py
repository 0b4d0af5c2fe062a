"""``linattn-ref train`` of networks that write: characters, a word again, an image's pixels."""

import argparse
from pathlib import Path
from typing import Any

from linattn_ref.cli.options import at_least, say
from linattn_ref.cli.task import add_task, common, say_files, shape_of

__all__ = ["AUTOREGRESSIVE", "add_characters", "add_duplication", "add_images"]

AUTOREGRESSIVE = ("softmax", "linear", "lsh-1", "lsh-4", "performer", "local")  # importing their names takes a second


def add_characters(tasks: Any) -> None:
    """The options of :func:`run_characters`."""
    option = add_task(tasks, "characters", run_characters, attention=("linear", "softmax"), steps=1000)
    option("--text", type=Path, metavar="FILE", help="UTF-8 text to learn from (default: film reviews, fetched once)")


def run_characters(arguments: argparse.Namespace) -> None:
    """Train a small transformer to write, a character at a time, and let it.

    Writes record.jsonl (the command, seed and versions; then losses), last.safetensors and best.safetensors.
    """
    from linattn_ref.experiments.learning import characters
    from linattn_ref.training.loop import read_record

    shape = shape_of(characters.Shape(), arguments, width=32, hidden=64, heads=2, layers=1, length=32, batch=4)
    params, model, found = characters.run(arguments.out, text=arguments.text, shape=shape, **common(arguments))
    facts, *lines = read_record(arguments.out)
    for what, loss in facts["facts"]["yardsticks"].items():
        say(f"{what}: {loss:.3f} nats a character")
    say(f"after {lines[-1]['step']} steps: {lines[-1]['loss']:.3f} (training {lines[-1]['training_loss']:.3f})")
    say(f"\n{characters.write(params, model, found, seed=arguments.seed)}\n")
    say_files(arguments.out)


def add_duplication(tasks: Any) -> None:
    """The options of :func:`run_duplication`."""
    option = add_task(tasks, "duplication", run_duplication, attention=AUTOREGRESSIVE, steps=10_000)
    option("--length", type=at_least(5), metavar="S", help="places (default: 68, for words of 17 to 32 symbols)")
    option("--width", type=at_least(2), metavar="E", help="(default: 64)")
    option("--heads", type=at_least(1), metavar="H", help="(default: 2)")
    option("--layers", type=at_least(1), metavar="L", help="(default: 2)")
    option("--batch", type=at_least(1), metavar="B", help="sequences a step (default: 32)")
    after = "steps after which the rate is divided by ten (default: eight tenths of all; in the paper's code: 3000)"
    option("--reduce-after", type=at_least(1), metavar="S", help=after)


def run_duplication(arguments: argparse.Namespace) -> None:
    """Train a small transformer to copy a word ("Transformers are RNNs", section 4.1.1).

    Writes record.jsonl (the command, seed and versions; then losses), times.jsonl and the checkpoints.
    """
    from linattn_ref.experiments.learning import duplication, runs

    shape = shape_of(duplication.Shape(), arguments, width=16, layers=1, length=12, batch=4)
    duplication.run(arguments.out, shape=shape, reduce_after=arguments.reduce_after, **common(arguments))
    run = runs.read(arguments.out)
    say(
        f"{arguments.attention}, after {run.steps[-1]} steps and {run.cpu_seconds[-1]:.0f} CPU seconds:"
        f" {run.curves['loss'][-1]:.4f} nats a symbol, {run.curves['accuracy'][-1]:.2%} of them right"
    )
    say_files(arguments.out)


def add_images(tasks: Any) -> None:
    """The options of :func:`run_images`."""
    option = add_task(tasks, "images", run_images, attention=AUTOREGRESSIVE, steps=4000)
    option("--collection", choices=("mnist", "cifar-10"), default="mnist", help="(default: %(default)s)")
    option("--data", type=Path, metavar="DIR", help="the original files (default: MNIST's, fetched once)")
    option(
        "--head", choices=("softmax", "mixture"), default="softmax", help="what is said of a pixel (default: softmax)"
    )
    option("--width", type=at_least(2), metavar="E", help="(default: 64)")
    option("--heads", type=at_least(1), metavar="H", help="(default: 2)")
    option("--layers", type=at_least(1), metavar="L", help="(default: 4)")
    option("--hidden", type=at_least(1), metavar="F", help="width within the feed-forward layers (default: 256)")
    option("--batch", type=at_least(1), metavar="B", help="images a step (default: 8)")
    shipped = "of the networks that come with the package: 0.004"
    option("--peak", type=float, default=3e-3, metavar="RATE", help=f"the highest rate (default: 0.003; {shipped})")
    earlier = "weights of another run, with another seed, to go on from"
    example = "out/images/last.safetensors --seed 1 --out out/images-on"
    option("--start", type=Path, metavar="FILE", help=f"{earlier}, for instance: --start {example}")
    option("--every", type=at_least(1), metavar="S", help="steps from one evaluation to the next (default: 500)")


def run_images(arguments: argparse.Namespace) -> None:
    """Train a small transformer to draw digits, a pixel at a time ("Transformers are RNNs", section 4.2).

    Writes record.jsonl (the command, seed and versions; then losses), times.jsonl and the checkpoints.
    """
    from linattn_ref.experiments.learning import images, runs

    shape = shape_of(images.Shape(), arguments, width=16, hidden=32, layers=1, batch=2)
    images.run(
        arguments.out,
        data=arguments.data,
        collection=arguments.collection,
        head=arguments.head,
        shape=shape,
        peak=arguments.peak,
        start_from=arguments.start,
        cut=8 if arguments.quick else None,
        every=arguments.every or (20 if arguments.quick else 500),
        **common(arguments),
    )
    run = runs.read(arguments.out)
    say(
        f"{arguments.attention}, after {run.steps[-1]} steps and {run.cpu_seconds[-1]:.0f} CPU seconds:"
        f" {run.curves['bits'][-1]:.3f} bits a pixel of {run.facts['watched']} test images"
        f" ({run.curves['bits_without_first'][-1]:.3f} without the first pixel)"
    )
    say_files(arguments.out)
