"""A corpus of synthesised speech: sentences of film reviews, said by voices of eSpeak NG (`linattn_ref.data.espeak`).

No corpus that papers on speech recognition use is freely available, so by default speech is *synthesised*, and every
result says so; `linattn_ref.data.recordings` reads a real one. What keeps the task from being trivial:

* A speaker is an accent, a variant, a speed, a pitch and its range, drawn for each. The validation and test parts have
  other variants than the training part, and other sentences, from other reviews.
* Each utterance goes through a filter of its own, as if by another microphone, and noise of another colour is added, 5
  to 25 dB below it.

It is made once, by a seed, and kept in the cache directory with its hash: some 500 MB of features
(`linattn_ref.data.filterbank`), not the sound, which a second call of :func:`speaker` makes again.
"""

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.atomic import write_all
from linattn_ref.data import espeak, fetch, filterbank, splits
from linattn_ref.data.espeak import Spoken, Voice
from linattn_ref.data.splits import Part
from linattn_ref.op import Array, plain_numbers
from linattn_ref.op.options import check_choice, check_sizes
from linattn_ref.telling import Progress

__all__ = ["RATE", "Corpus", "Utterances", "corpus", "draw_voice", "sentences", "speaker", "through_a_microphone"]

RATE = 16000  # samples per second
VERSION = 1  # of what is made; a change of it makes the corpus anew
EACH = 25  # utterances per speaker
SPEAKERS = {"training": 960, "validation": 12, "test": 12}
HELD_OUT = {"validation": ("m4", "f3"), "test": ("m7", "f5")}  # variants; all others are for training
WORDS = range(4, 13)  # a sentence
LOUDER = 8.0  # dB, up or down, by the filter of a microphone
QUIETER = (5.0, 25.0)  # dB, the noise than the speech

Samples = NDArray[np.int16]


class Utterances(NamedTuple):
    """What is said in one part of a corpus."""

    features: list[Array]  # (T, 40) each, normalised per speaker
    labels: list[NDArray[np.int64]]  # (S,) each, places in Corpus.symbols, from 1 on
    starts: list[Array]  # (S,) each, seconds; empty where nobody says them
    texts: list[str]
    speakers: list[str]


class Corpus(NamedTuple):
    """Speech, and what is said in it."""

    parts: dict[Part, Utterances]
    symbols: tuple[str, ...]  # of which the first, the blank, is ""
    name: str
    sha256: str
    unit: str = "phonemes"  # or "letters"


@plain_numbers
def corpus(
    *,
    seed: int = 0,
    speakers: dict[str, int] | None = None,
    each: int = EACH,
    joined: int = 1,
    cache: fetch.PathLike | None = None,
    progress: Progress = iter,
) -> Corpus:
    """The synthesised corpus, made if it is not in the cache.

    Parameters
    ----------
    seed : int
    speakers : dict from part to int, optional
        How many; `SPEAKERS` unless given.
    each, joined : int
        Utterances of each of them, and sentences per utterance. When all sentences of a part have been said, others
        say them again.
    cache : path, optional
        `fetch.cache_directory` unless given.
    progress : callable
        Wraps the speakers: ``tqdm.tqdm``, say.
    """
    speakers = SPEAKERS if speakers is None else speakers
    if {*speakers} != {*splits.PARTS} or min(*speakers.values(), each) < 1:
        raise ValueError(f"speakers: expected some for each of {', '.join(splits.PARTS)}, got {speakers}, each {each}")
    check_sizes(joined=joined)
    settings = {"seed": seed, "speakers": speakers, "each": each, "joined": joined, "version": VERSION}
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    folder = fetch.cache_directory() if cache is None else Path(cache)
    path, note = folder / f"speech-{key}.npz", folder / f"speech-{key}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # not there, or damaged: it is made anew
        if fetch.file_sha256(path) == json.loads(note.read_text())["sha256"]:
            return _read(path)
    arrays = _arrays(settings, progress)

    def write(to: Path) -> None:
        with to.open("wb") as file:
            np.savez(file, **arrays)
        kept["sha256"] = fetch.file_sha256(to)

    kept: dict[str, Any] = {"settings": settings, "sound_sha256": str(arrays.pop("sound_sha256"))}
    write_all({path: write, note: lambda to: to.write_text(json.dumps(kept, indent=1) + "\n")})
    return _read(path)


# --- What is said, and by whom ----------------------------------------------------------------------------------------


def sentences(part: Part, reviews: Sequence[str]) -> list[str]:
    """Sentences of 4 to 12 plain words, each once, out of the reviews of a part."""
    found: dict[str, None] = {}
    for review in reviews:
        for sentence in re.split(r"(?<=[.!?])\s+|<br />", review):
            plain = sentence.strip(" .!?\"'")
            if len(plain.split()) in WORDS and re.fullmatch(r"[A-Za-z][a-z', ]+", plain):
                found[plain] = None
    return list(found)


def draw_voice(part: Part, rng: np.random.Generator) -> Voice:
    """A speaker for a part."""
    check_choice("part", part, splits.PARTS)
    kept_back = [variant for variants in HELD_OUT.values() for variant in variants]
    variants = HELD_OUT.get(part) or [variant for variant in espeak.VARIANTS if variant not in kept_back]
    accent, variant = espeak.ACCENTS[rng.integers(len(espeak.ACCENTS))], variants[rng.integers(len(variants))]
    speed, pitch, reach = (int(rng.integers(*limits)) for limits in ((150, 211), (30, 71), (30, 81)))
    return Voice(accent, variant, speed, pitch, reach)


def through_a_microphone(samples: Samples, rng: np.random.Generator) -> Array:
    """What is recorded of a sentence: at 16 kHz, filtered, with noise; numbers from -1 to 1."""
    from scipy import signal

    x = signal.resample_poly(samples / 32768, RATE // 50, espeak.RATE // 50)
    x = signal.oaconvolve(x, _filter(rng), mode="same")
    noise = signal.oaconvolve(rng.standard_normal(len(x)), _filter(rng), mode="same")
    below = rng.uniform(*QUIETER)
    noise *= np.sqrt((x**2).mean() / (noise**2).mean()) * 10 ** (-below / 20)
    x += noise
    return x / max(1.0, np.abs(x).max())


def _filter(rng: np.random.Generator) -> Array:
    """An impulse response whose gain at nine frequencies is drawn, up to 8 dB either way."""
    from scipy import signal

    gain = 10 ** (rng.uniform(-LOUDER, LOUDER, 9) / 20)
    return signal.firwin2(65, np.linspace(0, 1, 9), gain)


@plain_numbers
def speaker(part: Part, number: int, texts: Sequence[str], seed: int = 0) -> tuple[Voice, list[Spoken], list[Array]]:
    """A speaker's voice, what eSpeak NG makes of the sentences, and what a microphone records of it."""
    check_choice("part", part, splits.PARTS)
    rng = np.random.default_rng([seed, splits.PARTS.index(part), number])
    voice = draw_voice(part, rng)
    spoken = espeak.speak(texts, voice)
    return voice, spoken, [through_a_microphone(each.samples, rng) for each in spoken]


# --- The file in the cache --------------------------------------------------------------------------------------------


def _arrays(settings: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """All parts, as arrays."""
    found = splits.split(splits.read_labelled(fetch.open_content(fetch.REVIEWS)))
    arrays: dict[str, Any] = {}
    sound, said = hashlib.sha256(), set[str]()
    for part in splits.PARTS:
        texts = [text for text in sentences(part, found[part].texts) if text not in said]
        said |= set(texts)
        shape = settings["speakers"][part], settings["each"], settings["joined"]
        rng, count = np.random.default_rng([settings["seed"], 7, splits.PARTS.index(part)]), math.prod(shape)
        rounds = [rng.permutation(len(texts)) for _ in range(-(-count // len(texts)))]
        order = np.concatenate(rounds)[:count].reshape(shape)
        chosen = [[". ".join(texts[i] for i in one) for one in of_speaker] for of_speaker in order]
        arrays |= _part_arrays(part, chosen, settings["seed"], sound, progress)
    symbols = ["", *sorted({name for part in splits.PARTS for name in arrays[f"{part}_phonemes"]})]
    for part in splits.PARTS:
        phonemes = arrays.pop(f"{part}_phonemes")
        arrays[f"{part}_labels"] = np.array([symbols.index(name) for name in phonemes], np.int16)
    return {**arrays, "symbols": np.array(symbols), "sound_sha256": sound.hexdigest()}


def _one(part: Part, number: int, texts: Sequence[str], seed: int) -> tuple[Voice, list[Spoken], list[Array]]:
    """A speaker, with features ``(T, 40)`` in the place of recordings."""
    voice, spoken, recorded = speaker(part, number, texts, seed)
    heard = filterbank.normalise([filterbank.log_mel(each, RATE) for each in recorded])
    return voice, spoken, [each.astype(np.float16) for each in heard]


def _part_arrays(part: Part, chosen: list[list[str]], seed: int, sound: Any, progress: Progress) -> dict[str, Any]:
    """What each speaker says; of the sound only the hash is kept."""
    features: list[Array] = []
    starts: list[Array] = []
    phonemes: list[list[str]] = []
    voices: list[Voice] = []
    with ThreadPoolExecutor(2) as pool:
        for voice, spoken, heard in progress(pool.map(partial(_one, part, seed=seed), range(len(chosen)), chosen)):
            features += heard
            for each in spoken:
                sound.update(each.samples.tobytes())
                starts.append(each.starts.astype(np.float32) / espeak.RATE)
                phonemes.append(each.phonemes)
            voices.append(voice)
    return {
        f"{part}_features": np.concatenate(features),  # (all frames, 40)
        f"{part}_frames": np.array([len(each) for each in features]),  # (utterances,)
        f"{part}_phonemes": [name for each in phonemes for name in each],
        f"{part}_starts": np.concatenate(starts),
        f"{part}_counts": np.array([len(each) for each in phonemes]),  # (utterances,)
        f"{part}_texts": np.array([text for of_speaker in chosen for text in of_speaker]),
        f"{part}_speakers": np.array(
            [f"{s} {voice.accent}+{voice.variant}" for s, voice in enumerate(voices) for _ in chosen[s]]
        ),
    }


def _read(path: Path) -> Corpus:
    parts = {}
    with np.load(path) as file:
        for part in splits.PARTS:
            cut = {name: file[f"{part}_{name}"] for name in ("features", "labels", "starts", "texts", "speakers")}
            frames, counts = (np.cumsum(file[f"{part}_{name}"])[:-1] for name in ("frames", "counts"))
            parts[part] = Utterances(
                np.split(cut["features"], frames),
                np.split(cut["labels"].astype(np.int64), counts),
                np.split(cut["starts"], counts),
                cut["texts"].tolist(),
                cut["speakers"].tolist(),
            )
        symbols = tuple(file["symbols"].tolist())
    return Corpus(parts, symbols, "synthesised by eSpeak NG", fetch.file_sha256(path))
