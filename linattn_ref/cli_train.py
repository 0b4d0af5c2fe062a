"""``linattn-ref train``: what is learned by this package's own gradients. Can be stopped, and resumed."""

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from linattn_ref.cli_options import add_command, at_least

__all__ = ["add_gather", "add_tasks"]

QUICK_STEPS = 40
SPEECH_STEPS = 900


def add_tasks(tasks: Any) -> None:
    """A command a task."""
    option = _add_task(tasks, "characters", run_characters, attention=("linear", "softmax"), steps=1000)
    option("--text", type=Path, metavar="FILE", help="UTF-8 text to learn from (default: film reviews, fetched once)")

    option = _add_task(tasks, "duplication", run_duplication, attention=AUTOREGRESSIVE, steps=10_000)
    option("--length", type=at_least(5), metavar="S", help="places (default: 68, for words of 17 to 32 symbols)")
    option("--width", type=at_least(2), metavar="E", help="(default: 64)")
    option("--heads", type=at_least(1), metavar="H", help="(default: 2)")
    option("--layers", type=at_least(1), metavar="L", help="(default: 2)")
    option("--batch", type=at_least(1), metavar="B", help="sequences a step (default: 32)")

    option = _add_task(tasks, "images", run_images, attention=AUTOREGRESSIVE, steps=4000)
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
    option("--peak", type=float, default=3e-3, metavar="RATE", help="the highest learning rate (default: %(default)s)")
    option("--every", type=at_least(1), metavar="S", help="steps from one evaluation to the next (default: 500)")

    option = _add_task(tasks, "mlm", run_mlm, attention=ENCODER, steps=2000, default="softmax")
    option("--text", type=Path, metavar="FILE", help="UTF-8 text to learn from (default: film reviews, fetched once)")
    option("--length", type=at_least(8), metavar="N", help="tokens a sequence (default: 512)")
    _add_price(option)
    option("--width", type=at_least(2), metavar="E", help="(default: 128)")
    option("--heads", type=at_least(1), metavar="H", help="(default: 4)")
    option("--layers", type=at_least(1), metavar="L", help="(default: 4)")
    option("--peak", type=float, default=2e-3, metavar="RATE", help="the highest learning rate (default: %(default)s)")
    option("--vocabulary", type=at_least(260), metavar="V", help="pieces of the vocabulary (default: 8000)")

    option = _add_task(tasks, "speech", run_speech, attention=HEARING, steps=SPEECH_STEPS)
    option(
        "--data", type=Path, metavar="DIR", help="recordings, as TIMIT or LibriSpeech has them (default: synthesised)"
    )
    option("--width", type=at_least(2), metavar="E", help="and the units of an LSTM in each direction (default: 128)")
    option("--heads", type=at_least(1), metavar="H", help="(default: 4)")
    option("--layers", type=at_least(1), metavar="L", help="of a transformer (default: 4)")
    option("--peak", type=float, default=2e-3, metavar="RATE", help="the highest learning rate (default: %(default)s)")

    option = _add_task(tasks, "finetune", run_finetune, attention=ENCODER, steps=500, default="softmax")
    option("--model", type=Path, metavar="DIR", help="a BERT or RoBERTa (default: all-MiniLM-L6-v2, fetched once)")
    option("--data", type=Path, metavar="FILE", help="CSV of text, label, source (default: film reviews, fetched once)")
    option("--source", default="imdb", help="of the texts: imdb, rotten_tomatoes (default: imdb)")
    option("--start", type=Path, metavar="DIR", help="go on from what a run with softmax attention has learned")
    option("--length", type=at_least(8), metavar="N", help="tokens a text (default: 128)")
    _add_price(option)
    option("--examples", type=at_least(1), metavar="S", help="texts to learn from (default: 8000)")
    option("--batch", type=at_least(1), metavar="B", help="texts a step (default: 16)")
    option("--peak", type=float, default=1e-4, metavar="RATE", help="the highest learning rate (default: %(default)s)")


AUTOREGRESSIVE = (
    "softmax",
    "linear",
    "lsh-1",
    "lsh-4",
    "performer",
    "local",
)  # causal_attention.NAMES: that takes a second


ENCODER = (
    "softmax",
    "linformer",
    "nystromformer",
    "performer",
    "rfa",
    "linear",
    "local",
    "longformer",
    "bigbird",
    "long-short",
    "reformer",
)  # encoder_attention.NAMES


HEARING = ("lstm", "softmax", "linear", "lsh-4", "lsh-1")  # speech.NAMES


def _add_price(option: Any) -> None:
    """What a mechanism may cost, and how Linformer's projections are shared."""
    option("--k", type=at_least(1), default=64, help="keys, mixtures or features a query (default: %(default)s)")
    option(
        "--sharing",
        choices=("none", "headwise", "key_value", "layerwise"),
        default="headwise",
        help="of linformer's projections (default: %(default)s)",
    )


def _add_task(
    tasks: Any, name: str, run: Any, *, attention: tuple[str, ...], steps: int, default: str = "linear"
) -> Any:
    """What every task has; returns the function that adds another option."""
    command = add_command(tasks, name, run)
    command.set_defaults(if_interrupted="; the same command with --resume goes on from the last checkpoint")
    command.set_defaults(all_steps=steps)
    option = command.add_argument
    option("--out", type=Path, default=Path("out") / name, metavar="DIR", help="(default: %(default)s)")
    option("--attention", choices=attention, default=default, help="(default: %(default)s)")
    option("--steps", type=at_least(1), metavar="S", help=f"(default: {steps}, or {QUICK_STEPS} with --quick)")
    option("--seed", type=at_least(0), default=0, help="(default: 0)")
    option("--quick", action="store_true", help="a tiny network, for a test")
    option("--resume", action="store_true", help="go on from the last checkpoint; without it, begin anew")
    return option


def _common(arguments: argparse.Namespace) -> dict[str, Any]:
    """Those options as a task's ``run`` takes them."""
    from tqdm import tqdm

    return {
        "attention": arguments.attention,
        "steps": arguments.steps or (QUICK_STEPS if arguments.quick else arguments.all_steps),
        "seed": arguments.seed,
        "resume": arguments.resume,
        "command": arguments.command_line,
        "progress": lambda steps: tqdm(steps, unit="step", file=sys.stderr, disable=None),
    }


def _shape(shape: Any, arguments: argparse.Namespace, **quick: int) -> Any:
    """The default shape, or the quick one, with what the options say."""
    chosen = {name: getattr(arguments, name, None) for name in shape._fields}
    return shape._replace(**(quick if arguments.quick else {}))._replace(
        **{name: value for name, value in chosen.items() if value is not None}
    )


def run_characters(arguments: argparse.Namespace) -> None:
    """Train a small transformer to write, a character at a time, and let it.

    Writes record.jsonl (the command, seed and versions; then losses), last.safetensors and best.safetensors.
    """
    from linattn_ref.experiments.learning import characters
    from linattn_ref.training.loop import read_record

    shape = _shape(characters.Shape(), arguments, width=32, hidden=64, heads=2, layers=1, length=32, batch=4)
    params, model, found = characters.run(arguments.out, text=arguments.text, shape=shape, **_common(arguments))
    facts, *lines = read_record(arguments.out)
    for what, loss in facts["facts"]["yardsticks"].items():
        print(f"{what}: {loss:.3f} nats a character")
    print(f"after {lines[-1]['step']} steps: {lines[-1]['loss']:.3f} (training {lines[-1]['training_loss']:.3f})")
    print(f"\n{characters.write(params, model, found, seed=arguments.seed)}\n")
    _say_files(arguments.out)


def run_duplication(arguments: argparse.Namespace) -> None:
    """Train a small transformer to copy a word ("Transformers are RNNs", section 4.1).

    Writes record.jsonl (the command, seed and versions; then losses), times.jsonl and the checkpoints.
    """
    from linattn_ref.experiments.learning import duplication, runs

    shape = _shape(duplication.Shape(), arguments, width=16, layers=1, length=12, batch=4)
    duplication.run(arguments.out, shape=shape, **_common(arguments))
    run = runs.read(arguments.out)
    print(
        f"{arguments.attention}, after {run.steps[-1]} steps and {run.cpu_seconds[-1]:.0f} CPU seconds:"
        f" {run.curves['loss'][-1]:.4f} nats a symbol, {run.curves['accuracy'][-1]:.2%} of them right"
    )
    _say_files(arguments.out)


def run_images(arguments: argparse.Namespace) -> None:
    """Train a small transformer to draw digits, a pixel at a time ("Transformers are RNNs", section 4.2).

    Writes record.jsonl (the command, seed and versions; then losses), times.jsonl and the checkpoints.
    """
    from linattn_ref.experiments.learning import images, runs

    shape = _shape(images.Shape(), arguments, width=16, hidden=32, layers=1, batch=2)
    images.run(
        arguments.out,
        data=arguments.data,
        collection=arguments.collection,
        head=arguments.head,
        shape=shape,
        peak=arguments.peak,
        cut=8 if arguments.quick else None,
        every=arguments.every or (20 if arguments.quick else 500),
        **_common(arguments),
    )
    run = runs.read(arguments.out)
    print(
        f"{arguments.attention}, after {run.steps[-1]} steps and {run.cpu_seconds[-1]:.0f} CPU seconds:"
        f" {run.curves['bits'][-1]:.3f} bits a pixel of {run.facts['watched']} test images"
        f" ({run.curves['bits_without_first'][-1]:.3f} without the first pixel)"
    )
    _say_files(arguments.out)


def run_mlm(arguments: argparse.Namespace) -> None:
    """Train a small bidirectional transformer to say which tokens were hidden (Linformer, Figure 3).

    Writes record.jsonl (the command, seed and versions; then losses), tokenizer.json, times.jsonl and the checkpoints.
    """
    from linattn_ref.experiments.learning import mlm, runs

    quick = {"width": 32, "hidden": 64, "heads": 2, "layers": 2, "length": 64, "tokens": 512, "vocabulary": 500}
    shape = _shape(mlm.Shape(), arguments, **quick)
    mlm.run(
        arguments.out,
        text=arguments.text,
        k=arguments.k,
        sharing=arguments.sharing,
        shape=shape,
        peak=arguments.peak,
        cut=300 if arguments.quick else None,
        **_common(arguments),
    )
    run = runs.read(arguments.out)
    for what, loss in run.facts["yardsticks"].items():
        print(f"{what}: perplexity {math.exp(loss):.1f}")
    print(
        f"{arguments.attention}, after {run.steps[-1]} steps and {run.cpu_seconds[-1]:.0f} CPU seconds:"
        f" perplexity {math.exp(run.curves['loss'][-1]):.1f}, {run.curves['accuracy'][-1]:.1%} of the hidden right"
    )
    _say_files(arguments.out)


def run_speech(arguments: argparse.Namespace) -> None:
    """Train a small network to say which phonemes it hears ("Transformers are RNNs", section 4.3).

    The speech is synthesised by eSpeak NG (the extra "speech"), unless recordings are given. Writes record.jsonl (the
    command, seed and versions; then losses), result.json (error rates on the test part), times.jsonl, the checkpoints.
    """
    from tqdm import tqdm

    from linattn_ref.data import recordings
    from linattn_ref.data import speech as data
    from linattn_ref.experiments.learning import runs, speech, speech_result

    if arguments.data:
        corpus = recordings.read(arguments.data, say=lambda line: print(line, file=sys.stderr))
    else:
        small: dict[str, Any] = {"speakers": dict.fromkeys(data.SPEAKERS, 2), "each": 4} if arguments.quick else {}
        corpus = data.corpus(**small, progress=lambda of: tqdm(of, unit="voice", file=sys.stderr, disable=None))
    shape = _shape(speech.Shape(), arguments, width=16, hidden=32, heads=2, layers=1, frames=400, lstms=1)
    params = speech.run(arguments.out, corpus, shape=shape, peak=arguments.peak, **_common(arguments))
    result = speech_result.write(arguments.out, params, arguments.attention, shape, corpus)
    run = runs.read(arguments.out)
    print(
        f"{arguments.attention}, after {run.steps[-1]} steps and {run.cpu_seconds[-1]:.0f} CPU seconds, on"
        f" {result['utterances']} test utterances ({corpus.name}): {result['greedy']:.1%} of the {corpus.unit} wrong"
        f" by the likeliest path, {result['beam']:.1%} by a beam of {result['width']}"
    )
    _say_files(arguments.out)


def run_finetune(arguments: argparse.Namespace) -> None:
    """Train a pretrained BERT to tell praise from blame, with any mechanism in its layers (Linformer, Table 2).

    Writes record.jsonl (the command, seed and versions; then losses), result.json (accuracy on the test part),
    times.jsonl and the checkpoints.
    """
    from linattn_ref.experiments.learning import finetune

    quick = {"length": 32, "batch": 4, "examples": 64, "watched": 32, "tested": 32}
    result = finetune.run(
        arguments.out,
        model=arguments.model,
        data=arguments.data,
        source=arguments.source,
        k=arguments.k,
        sharing=arguments.sharing,
        start=arguments.start,
        peak=arguments.peak,
        shape=_shape(finetune.Shape(), arguments, **quick),
        **_common(arguments),
    )
    for when in ("before", "after"):
        if found := result[when]:
            low, high = found["interval"]
            print(f"{when} training: {found['accuracy']:.1%} of {result['texts']} test texts ({low:.1%} to {high:.1%})")
    _say_files(arguments.out)


def _say_files(out: Path) -> None:
    print("wrote", *sorted(str(path) for path in out.glob("[!.]*")))


def add_gather(commands: Any) -> None:
    """The command for what many runs have said."""
    option = add_command(commands, "gather", run_gather).add_argument
    option("folder", type=Path, metavar="DIR", help="the runs lie in it, each in a folder of its own")
    option("target", type=Path, metavar="FILE.json", help="of the committed ones: figures/records/NAME.json")
    option("--weights", nargs="+", default=(), metavar="RUN", help="of these, the weights too: FILE-RUN.safetensors")


def run_gather(arguments: argparse.Namespace) -> None:
    """Write the records of many runs of training as one file, from which figures are drawn.

    Of a long curve every so many evaluations are kept. The checkpoints stay where they are.
    """
    from linattn_ref.experiments.learning import runs

    for name in arguments.weights:
        target = arguments.target.with_name(f"{arguments.target.stem}-{name}.safetensors")
        runs.keep_weights(arguments.folder / name, target)
        print(f"wrote {target}")
    for name, run in runs.gather(arguments.folder, arguments.target).items():
        last = ", ".join(f"{what} {curve[-1]:.4g}" for what, curve in run.curves.items())
        print(f"{name}: {run.steps[-1]} of {run.facts['steps']} steps, {run.cpu_seconds[-1]:.0f} CPU seconds, {last}")
    print(f"wrote {arguments.target}")
