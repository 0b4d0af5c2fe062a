"""``linattn-ref train speech``: networks that hear."""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

from linattn_ref.cli.options import at_least, say, tell
from linattn_ref.cli.task import add_task, common, say_files, shape_of

__all__ = ["HEARING", "add_speech"]

HEARING = ("lstm", "softmax", "linear", "lsh-4", "lsh-1")  # speech.NAMES
SPEECH_STEPS = 10000


def add_speech(tasks: Any) -> None:
    """The options of :func:`run_speech`."""
    option = add_task(tasks, "speech", run_speech, attention=HEARING, steps=SPEECH_STEPS)
    option(
        "--data", type=Path, metavar="DIR", help="recordings, as TIMIT or LibriSpeech has them (default: synthesised)"
    )
    option("--width", type=at_least(2), metavar="E", help="and the units of an LSTM in each direction (default: 128)")
    option("--heads", type=at_least(1), metavar="H", help="(default: 4)")
    option("--layers", type=at_least(1), metavar="L", help="of a transformer (default: 4)")
    option(
        "--peak",
        type=float,
        default=2e-3,
        metavar="RATE",
        help="the first, and highest, learning rate (default: %(default)s)",
    )


def run_speech(arguments: argparse.Namespace) -> None:
    """Train a small network to say which phonemes it hears ("Transformers are RNNs", section 4.3).

    The speech is synthesised by eSpeak NG (the extra "speech"), unless recordings are given. Writes record.jsonl (the
    command, seed and versions; then losses), result.json (error rates on the test part), times.jsonl, the checkpoints.
    """
    from tqdm import tqdm

    from linattn_ref.data import recordings
    from linattn_ref.data import speech as data
    from linattn_ref.experiments.learning import runs, speech, speech_frames, speech_result

    options = common(arguments)
    if arguments.data:
        bar = partial(tqdm, unit="sound", file=sys.stderr, disable=None)
        corpus = recordings.read(arguments.data, say=tell, progress=bar)
    else:
        small: dict[str, Any] = {"speakers": dict.fromkeys(data.SPEAKERS, 2), "each": 4} if arguments.quick else {}
        corpus = data.corpus(**small, progress=partial(tqdm, unit="voice", file=sys.stderr, disable=None))
    for part, count in speech_frames.left_out(corpus).items():
        if count:
            of = f"{count} of {len(corpus.parts[part].texts)} utterances for {part}"
            tell(f"{of} have more {corpus.unit} than frames, and are left out")
    shape = shape_of(speech.Shape(), arguments, width=16, hidden=32, heads=2, layers=1, frames=400, lstms=1)
    params = speech.run(arguments.out, corpus, shape=shape, peak=arguments.peak, **options)
    result = speech_result.write(arguments.out, params, arguments.attention, shape, corpus)
    run = runs.read(arguments.out)
    say(
        f"{arguments.attention}, after {run.steps[-1]} steps and {run.cpu_seconds[-1]:.0f} CPU seconds, on"
        f" {result['utterances']} test utterances ({corpus.name}): {result['greedy']:.1%} of the {corpus.unit} wrong"
        f" by the likeliest path, {result['beam']:.1%} by a beam of {result['width']}"
    )
    say_files(arguments.out)
