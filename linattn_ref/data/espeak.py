"""Synthesised speech: eSpeak NG says a sentence, and tells which phoneme begins at which sample.

This is no recording of anybody. eSpeak NG is a formant synthesiser: a few resonances, moved by tables and rules, of
which every phoneme sounds almost the same each time. Its *variants* (``m1`` to ``m8``, ``f1`` to ``f5``) move these
resonances and the pitch, as if the mouth were another; its *accents* are other rules of pronunciation.

The library comes in the package ``espeakng-loader`` (the extra ``speech``; 10 MB, no system package) and is called
through `ctypes`. It is under the GNU General Public License, version 3 or later: this package neither contains nor
links it, and what it says, sound and phonemes, is not covered by that licence.

The library remembers what it has said, down to single samples. So each call of :func:`speak` is a process of its own,
which says its sentences in order: the same sentences by the same voice are the same bytes each time.

References
----------
eSpeak NG 1.52, ``src/include/espeak-ng/speak_lib.h``.
"""

import ctypes
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.op.options import plain

__all__ = ["ACCENTS", "RATE", "VARIANTS", "Spoken", "Voice", "speak"]

RATE = 22050  # samples per second
ACCENTS = ("en-us", "en-029", "en-gb-x-rp", "en-gb-scotland")
VARIANTS = tuple(f"m{i}" for i in range(1, 9)) + tuple(f"f{i}" for i in range(1, 6))
LIMITS = {"speed": (80, 450), "pitch": (0, 99), "range": (0, 99)}  # the least and the largest that eSpeak NG takes
STRESS = "ˈˌ"

# Of speak_lib.h
SYNCHRONOUS, PHONEME_EVENTS_IN_IPA, UTF_8, CHARACTERS = 2, 1 | 2, 1, 1
LIST_ENDS, PHONEME = 0, 7  # kinds of events
SPEED, PITCH, RANGE = 1, 3, 4  # parameters


class Voice(NamedTuple):
    """Who speaks."""

    accent: str = "en-us"
    variant: str = "m1"
    speed: int = 175  # 80 to 450 words per minute
    pitch: int = 50  # 0 to 99
    range: int = 50  # of the pitch, 0 to 99


class Spoken(NamedTuple):
    """A sentence as it was said."""

    samples: NDArray[np.int16]  # (samples,), RATE per second
    phonemes: list[str]  # IPA, without stress and pauses
    starts: NDArray[np.int64]  # (phonemes,), the sample at which each begins


def speak(texts: Sequence[str], voice: Voice = Voice()) -> list[Spoken]:  # noqa: B008  # a constant
    """Have sentences said.

    Parameters
    ----------
    texts : sequence of str
    voice : Voice

    Returns
    -------
    list of Spoken
        The same bytes for the same arguments; what a sentence sounds like depends, a little, on those before it.

    Raises
    ------
    ImportError
        Without the extra ``speech``.
    ValueError
        No such voice, or a sentence in which there is nothing to say.
    RuntimeError
        eSpeak NG failed.
    """
    try:
        import espeakng_loader  # noqa: F401
    except ImportError as error:
        raise ImportError(f"speech is synthesised by eSpeak NG ({error}): pip install 'linattn-ref[speech]'") from error
    if voice.accent not in ACCENTS or voice.variant not in VARIANTS:
        raise ValueError(f"voice: expected one of {ACCENTS} with one of {VARIANTS}, got {voice}")
    voice = Voice(*map(plain, voice))
    for name, (least, most) in LIMITS.items():
        if type(x := getattr(voice, name)) is not int or not least <= x <= most:
            raise ValueError(f"voice.{name}: expected an integer from {least} to {most}, got {x!r}")
    asked = pickle.dumps((list(texts), tuple(voice)))
    done = subprocess.run([sys.executable, "-m", __name__], input=asked, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"eSpeak NG failed with status {done.returncode}: {done.stderr.decode().strip()[-300:]}")
    spoken = [Spoken(*each) for each in pickle.loads(done.stdout)]
    for text, each in zip(texts, spoken, strict=True):
        if not each.phonemes:
            raise ValueError(f"texts: there is nothing to say in {text!r}")
    return spoken


# --- In the other process ---------------------------------------------------------------------------------------------


class _Name(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in ("kind", "identifier", "place", "length", "milliseconds", "sample")),
        ("user_data", ctypes.c_void_p),
        ("id", _Name),
    )


def _library() -> Any:
    """The library, ready to speak."""
    from espeakng_loader import get_data_path, get_library_path

    library = ctypes.CDLL(get_library_path())
    if library.espeak_Initialize(SYNCHRONOUS, 0, str(get_data_path()).encode(), PHONEME_EVENTS_IN_IPA) != RATE:
        raise RuntimeError("eSpeak NG cannot read its data")
    return library


def _say(library: Any, texts: Sequence[str], voice: Voice) -> list[Spoken]:
    """All sentences, in order."""
    pieces: list[NDArray[np.int16]] = []
    heard: list[tuple[int, str]] = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))
    def collect(samples: Any, count: int, events: Any) -> int:
        if samples and count:
            pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        i = 0
        while events[i].kind != LIST_ENDS:
            if events[i].kind == PHONEME:
                heard.append((events[i].sample, events[i].id.string.decode("utf-8", "ignore")))
            i += 1
        return 0

    library.espeak_SetSynthCallback(collect)
    if library.espeak_SetVoiceByName(f"{voice.accent}+{voice.variant}".encode()):
        raise RuntimeError(f"eSpeak NG has no voice {voice.accent}+{voice.variant}")
    for parameter, value in ((SPEED, voice.speed), (PITCH, voice.pitch), (RANGE, voice.range)):
        library.espeak_SetParameter(parameter, value, 0)
    spoken = []
    for text in texts:
        pieces.clear()
        heard.clear()
        library.espeak_ng_SetRandSeed(0)  # of its noise; otherwise it is the time of day
        encoded = text.encode()
        if library.espeak_Synth(encoded, len(encoded) + 1, 0, CHARACTERS, 0, UTF_8, None, None):
            raise RuntimeError(f"eSpeak NG cannot say {text!r}")
        named = [(start, name.translate(dict.fromkeys(map(ord, STRESS)))) for start, name in heard]
        named = [(start, name) for start, name in named if name]
        samples = np.concatenate([*pieces, np.zeros(0, np.int16)])
        spoken.append(Spoken(samples, [name for _, name in named], np.array([start for start, _ in named], np.int64)))
    return spoken


def _main() -> None:
    texts, voice = pickle.load(sys.stdin.buffer)
    spoken = _say(_library(), texts, Voice(*voice))
    pickle.dump([tuple(each) for each in spoken], sys.stdout.buffer)  # `Spoken` has another name in this process


if __name__ == "__main__":
    _main()
