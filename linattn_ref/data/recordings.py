"""Recordings of one's own: a folder of audio files with what is said in them, as TIMIT or LibriSpeech is laid out.

    TRAIN/DR1/FCJF0/SX1.WAV, SX1.PHN             TIMIT: of each phone the first and last sample and its name
    train-clean-100/103/1240/103-1240-0000.flac, 103-1240.trans.txt       LibriSpeech: a line per utterance
    train/anna/1.wav, 1.txt                      anything else: the transcript beside the sound

The first folder says the part: ``train...``, ``dev...`` or ``valid...``, ``test...``, in capitals or not. Where nothing
is for validation, each tenth speaker of the training part is. The speaker is the folder that the sound is in, and in
LibriSpeech's layout the number that its name begins with.

TIMIT's 61 phones are folded into 39, as is usual since Lee and Hon (1989); of a transcript the letters, the apostrophe
and the space are learned: see `linattn_ref.data.transcripts` for what becomes of punctuation and digits. Sounds of
another rate than 16 kHz are resampled, of several channels the first is taken. A sound that is there twice, as TIMIT's
``SX1.WAV`` is in ``SX1.WAV.wav``, is taken once; what macOS leaves behind, ``._SX1.WAV``, is no sound; sounds in other
formats, such as MP3, are left out; and so are TIMIT's ``SA1`` and ``SA2``, which everybody says, in all parts. All of
this is said, and how many speakers are in several parts.

References
----------
Lee and Hon (1989), "Speaker-independent phone recognition using hidden Markov models", Table I.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from linattn_ref.data import filterbank, transcripts
from linattn_ref.data.fetch import PathLike
from linattn_ref.data.speech import RATE, Corpus, Utterances
from linattn_ref.data.splits import PARTS, Part
from linattn_ref.op import Array
from linattn_ref.telling import Progress, Say, silent

__all__ = ["FOLDED", "PHONES", "read", "read_sound"]

SOUNDS = (".wav", ".flac")
OTHERS = (
    *(".aac", ".aif", ".aifc", ".aiff", ".amr", ".au", ".caf", ".m4a", ".mp3", ".mp4", ".oga", ".ogg", ".opus", ".sph"),
    *(".w64", ".webm", ".wma"),
)
LEFTOVER = "._"  # what the name of a file begins with in which macOS keeps what other systems have no place for
LEAST = 4000  # samples per second: of speech, what is above 2 kHz is lost then
# The 39 of Lee and Hon; what is told as one of them; q, the glottal stop, is left out.
PHONES = (
    *("aa", "ae", "ah", "aw", "ay", "b", "ch", "d", "dh", "dx", "eh", "er", "ey", "f", "g", "hh", "ih", "iy", "jh"),
    *("k", "l", "m", "n", "ng", "ow", "oy", "p", "r", "s", "sh", "sil", "t", "th", "uh", "uw", "v", "w", "y", "z"),
)
TOLD_AS = "ao aa, ax ah, ax-h ah, axr er, hv hh, ix ih, el l, em m, en n, nx n, eng ng, zh sh, ux uw"
FOLDED = {name: name for name in PHONES} | dict(pair.split() for pair in TOLD_AS.split(", ")) | {"q": ""}
FOLDED |= dict.fromkeys(("pcl", "tcl", "kcl", "bcl", "dcl", "gcl", "h#", "pau", "epi"), "sil")


class Recording(NamedTuple):
    """A sound and what is said in it."""

    path: Path
    part: Part
    speaker: str
    text: str
    symbols: list[str]
    starts: list[int]  # samples; empty where nobody says them
    unlike: tuple[str, ...] = ()  # of the text, what the symbols have not: see `transcripts.plain`


def read(folder: PathLike, *, say: Say = silent, progress: Progress = iter) -> Corpus:
    """A corpus of recordings.

    Parameters
    ----------
    folder : path
    say : callable
        Told, a line each, what is left out, and of how many sounds and transcripts not all is taken as it is.
    progress : callable
        Wraps the sounds: ``tqdm.tqdm``, say.

    Raises
    ------
    FileNotFoundError
        No such folder, no sound in it, or one without anything beside it that says what is said.
    ValueError
        A file that is no sound or no text, a symbol that is unknown, a part with nothing in it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such folder")
    paths, left_out = _sounds(folder)
    if not paths:
        raise FileNotFoundError("; ".join([f"{folder}: there is no sound in it (.wav or .flac)", *left_out]))
    for note in left_out:
        say(f"{folder}: {note}")
    phones = [_beside(path, ".phn") is not None for path in paths]
    if any(phones) and not all(phones):
        one = paths[phones.index(False)]
        raise FileNotFoundError(f"{one}: there is no .phn beside it that says what is said, as beside others")
    if any(phones) and (others := [path for path in paths if not path.name.lower().startswith(("sa1.", "sa2."))]):
        if len(others) < len(paths):
            say(f"{folder}: {len(paths) - len(others)} sounds of the sentences that everybody says are left out")
        paths = others
    found = _with_validation([_recording(path, folder) for path in paths])
    for part in PARTS:
        if not any(each.part == part for each in found):
            raise ValueError(f"{folder}: nothing in it is for {part}; folders are called train, dev or valid, and test")
    parts_of = Counter(speaker for speaker, _ in {(each.speaker, each.part) for each in found})
    if twice := sorted(speaker for speaker, count in parts_of.items() if count > 1):
        say(f"{folder}: speakers in several parts: {len(twice)}, {twice[0]} for one")
    changed = [each for each in found if each.unlike]
    if changed:
        kinds = ", ".join(sorted({kind for each in changed for kind in each.unlike}))
        example = f"{changed[0].text[:60]!r} is learned as {''.join(changed[0].symbols)[:80]!r}"
        say(f"{folder}: {len(changed)} of {len(found)} transcripts have {kinds}: {example}")
    heard = [_hear(each) for each in progress(found)]
    names = PHONES if all(phones) else transcripts.LETTERS
    pairs = list(zip(found, heard, strict=True))
    parts = {part: _part([pair for pair in pairs if pair[0].part == part], names) for part in PARTS}
    for note, count in Counter(note for each in heard for note in each.notes).items():
        say(f"{folder}: {count} of {len(heard)} sounds {note}")
    content = hashlib.sha256("".join(each.sha256 for each in heard).encode())
    unit = "phonemes" if all(phones) else "letters"
    return Corpus(parts, ("", *names), f"recordings in {folder.name}", content.hexdigest(), unit)


# --- Sounds -----------------------------------------------------------------------------------------------------------


class Heard(NamedTuple):
    """A sound as networks get it."""

    features: Array  # (T, 40)
    starts: Array  # seconds
    notes: list[str]  # what was changed
    sha256: str


def read_sound(path: Path) -> tuple[Array, int, int]:
    """WAV, FLAC, or TIMIT's NIST SPHERE: samples of the first channel, from -1 to 1; samples per second; channels.

    Raises
    ------
    ImportError
        Without soundfile, of the extra ``speech``.
    ValueError
        It is none.
    """
    try:
        import soundfile
    except ImportError as error:
        raise ImportError(f"sounds are read by soundfile ({error}): pip install 'linattn-ref[speech]'") from error
    try:
        samples, rate = soundfile.read(path, always_2d=True)
    except soundfile.LibsndfileError as error:
        raise ValueError(f"{path}: not a sound that can be read ({error.error_string})") from None
    return samples[:, 0], rate, samples.shape[1]


def _hear(one: Recording) -> Heard:
    samples, rate, channels = read_sound(one.path)
    if rate < LEAST:
        raise ValueError(f"{one.path}: expected at least {LEAST} samples per second, got {rate}")
    if not np.isfinite(samples).all():
        raise ValueError(f"{one.path}: expected samples that are numbers, got NaN or infinity")
    if one.starts and max(one.starts) >= len(samples):
        raise ValueError(f"{one.path}: a phone begins at sample {max(one.starts)}, and there are {len(samples)}")
    notes = [f"have {channels} channels, of which the first is taken"] if channels > 1 else []
    if rate != RATE:
        from scipy import signal

        common = int(np.gcd(rate, RATE))
        samples = signal.resample_poly(samples, RATE // common, rate // common)
        notes.append(f"have {rate} samples per second and are resampled to {RATE}")
    try:
        features = filterbank.log_mel(samples, RATE)
    except ValueError as error:
        raise ValueError(f"{one.path}: {error}") from None
    sha256 = hashlib.sha256(one.path.read_bytes() + " ".join(one.symbols).encode()).hexdigest()
    return Heard(features, np.array(one.starts) / rate, notes, sha256)


def _part(found: list[tuple[Recording, Heard]], names: Iterable[str]) -> Utterances:
    places = {name: i for i, name in enumerate(names, 1)}
    features: dict[str, list[Array]] = {}
    for each, heard in found:
        features.setdefault(each.speaker, []).append(heard.features)
    normalised = {name: iter(filterbank.normalise(of_one)) for name, of_one in features.items()}
    return Utterances(
        [next(normalised[each.speaker]) for each, _ in found],
        [np.array([places[name] for name in each.symbols], np.int64) for each, _ in found],
        [heard.starts for _, heard in found],
        [each.text for each, _ in found],
        [each.speaker for each, _ in found],
    )


# --- What stands beside them ------------------------------------------------------------------------------------------


def _recording(path: Path, folder: Path) -> Recording:
    """What stands beside a sound."""
    part, speaker = _part_of(path, folder), path.parent.name
    phones, own = (_beside(path, suffix) for suffix in (".phn", ".txt"))
    if phones is not None:
        rows = [line.split() for line in _lines(phones)]
        before = 0
        for row in rows:
            if len(row) != 3 or not (row[0] + row[1]).isdecimal() or row[2] not in FOLDED:
                raise ValueError(f"{phones}: expected a first sample, a last one and one of TIMIT's phones, got {row}")
            if not before <= (before := int(row[0])) <= int(row[1]):
                raise ValueError(f"{phones}: expected phones one after the other, got {row}")
        kept = [(int(row[0]), FOLDED[row[2]]) for row in rows if FOLDED[row[2]]]
        if not kept:
            raise ValueError(f"{phones}: there is no phone in it")
        return Recording(path, part, speaker, "", [name for _, name in kept], [start for start, _ in kept])
    together = path.parent / f"{_stem(path).rpartition('-')[0]}.trans.txt"
    if own is not None:
        text = " ".join(_lines(own)).strip()
    elif together.is_file():
        lines = dict(line.partition(" ")[::2] for line in _lines(together))
        if _stem(path) not in lines:
            raise FileNotFoundError(f"{together}: there is no line for {path.name}")
        text, speaker = lines[_stem(path)].strip(), _stem(path).partition("-")[0]
    else:
        raise FileNotFoundError(f"{path}: there is no .phn, .txt or .trans.txt beside it that says what is said")
    try:
        letters, unlike = transcripts.plain(text)
    except ValueError as error:
        raise ValueError(f"{own or together}: {error}") from None
    return Recording(path, part, speaker, text, list(letters), [], unlike)


def _lines(path: Path) -> list[str]:
    """A text's lines with something in them; a mark of the byte order, as Windows has it, is none of it."""
    try:
        return [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text in UTF-8 ({error.reason} at byte {error.start})") from None


def _sounds(folder: Path) -> tuple[list[Path], list[str]]:
    """The sounds in a folder, each once, and what else there is, in words."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    sounds = [path for path in files if path.suffix.lower() in SOUNDS and not path.name.startswith(LEFTOVER)]
    first = {path.parent / _stem(path): path for path in reversed(sounds)}
    twins = len(sounds) - len(first)
    leftovers = sum(path.suffix.lower() in SOUNDS and path.name.startswith(LEFTOVER) for path in files)
    others = Counter(path.suffix.lower() for path in files if path.suffix.lower() in OTHERS)
    kinds = ", ".join(f"{count} {suffix}" for suffix, count in sorted(others.items()))
    notes = {
        f"{twins} sounds are there twice, as SX1.WAV and SX1.WAV.wav are, and are taken once": twins,
        f"{leftovers} files of macOS ({LEFTOVER}*) are no sounds and are left out": leftovers,
        f"sounds in other formats are left out: {kinds}": len(others),
    }
    return sorted(first.values()), [note for note, count in notes.items() if count]


def _stem(path: Path) -> str:
    """The name without what says that it is a sound."""
    name = path.name
    while Path(name).suffix.lower() in SOUNDS:
        name = Path(name).stem
    return name


def _beside(path: Path, suffix: str) -> Path | None:
    """The file of the same name, in capitals or not."""
    for name in (path.with_name(_stem(path) + ending) for ending in (suffix, suffix.upper())):
        if name.is_file():
            return name
    return None


def _part_of(path: Path, folder: Path) -> Part:
    first, *others = (part.lower() for part in path.relative_to(folder).parts)
    for begins, part in (("train", "training"), ("dev", "validation"), ("valid", "validation"), ("test", "test")):
        if others and first.startswith(begins):
            return part  # type: ignore[return-value]
    got = repr(first) if others else "none"
    raise ValueError(f"{path}: the first folder says the part, expected train..., dev... or test..., got {got}")


def _with_validation(found: list[Recording]) -> list[Recording]:
    """Each tenth speaker of the training part is for validation, if nothing else is."""
    if any(each.part == "validation" for each in found):
        return found
    speakers = sorted({each.speaker for each in found if each.part == "training"})
    chosen = set(speakers[::10]) if len(speakers) > 1 else set()
    return [
        each._replace(part="validation") if each.speaker in chosen and each.part == "training" else each
        for each in found
    ]
