"""Recordings as TIMIT and LibriSpeech lay them out, and what may be wrong with them."""

import numpy as np
import pytest
from scipy.io import wavfile

from linattn_ref.data import recordings

soundfile = pytest.importorskip("soundfile", reason="needs the extra speech")


def sound(path, rate=16000, seconds=0.2):
    path.parent.mkdir(parents=True, exist_ok=True)
    x = np.random.default_rng(len(path.name)).standard_normal(int(rate * seconds)) * 3000
    if path.suffix == ".flac":
        soundfile.write(path, x / 32768, rate)
    else:
        wavfile.write(path, rate, x.astype(np.int16))


@pytest.fixture
def timit(tmp_path):
    for part, speaker in (("TRAIN", "FA"), ("TRAIN", "MB"), ("TEST", "MC")):
        path = tmp_path / part / "DR1" / speaker / "SA1.WAV"
        sound(path)
        path.with_suffix(".PHN").write_text("0 800 h#\n800 1600 sh\n1600 2400 ix\n2400 2500 q\n2500 3200 h#\n")
    return tmp_path


@pytest.fixture
def librispeech(tmp_path):
    for part in ("train-clean-100", "dev-clean", "test-clean"):
        folder = tmp_path / part / "19" / "198"
        sound(folder / "19-198-0000.flac", rate=8000 if part == "dev-clean" else 16000)
        (folder / "19-198.trans.txt").write_text("19-198-0000 NORTHANGER ABBEY'S\n")
    return tmp_path


def test_phones_are_folded_and_speakers_kept_apart(timit):
    found = recordings.read(timit)
    assert (len(found.symbols), found.unit) == (40, "phonemes")
    assert {part: len(inside.texts) for part, inside in found.parts.items()} == {
        "training": 1,
        "validation": 1,
        "test": 1,
    }
    test = found.parts["test"]
    assert [found.symbols[i] for i in test.labels[0]] == ["sil", "sh", "ih", "sil"]
    np.testing.assert_allclose(test.starts[0], [0, 0.05, 0.1, 2500 / 16000])
    assert test.features[0].shape == (18, 40)
    assert test.speakers == ["MC"]


@pytest.mark.slow
def test_letters_and_another_rate(librispeech):
    told = []
    found = recordings.read(librispeech, say=told.append)
    validation = found.parts["validation"]
    assert "".join(found.symbols[i] for i in validation.labels[0]) == "northanger abbey's"
    assert (found.unit, validation.speakers, validation.features[0].shape) == ("letters", ["19"], (18, 40))
    assert told == [f"{librispeech}: 1 sounds of 8000 samples a second were resampled to 16000"]


def spoil(folder, name, content):
    path = next(folder.rglob(name))
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("SA1.WAV", b"no sound", "not a sound that can be read"),
        ("SA1.PHN", b"0 800 zz\n", "one of TIMIT's phones, got .*zz"),
        ("SA1.PHN", b"800 aa\n", "expected a first sample"),
    ],
)
def test_a_file_that_is_wrong(timit, name, content, message):
    spoil(timit, name, content)
    with pytest.raises(ValueError, match=message):
        recordings.read(timit)


def test_a_transcript_with_a_symbol_that_is_unknown(librispeech):
    spoil(librispeech, "19-198.trans.txt", b"19-198-0000 CHAPTER 2\n")
    with pytest.raises(ValueError, match="expected letters, apostrophes and spaces, got '2'"):
        recordings.read(librispeech)


def test_what_is_missing(timit, tmp_path_factory):
    with pytest.raises(FileNotFoundError, match="there is no sound in it"):
        recordings.read(tmp_path_factory.mktemp("empty"))
    next(timit.rglob("SA1.PHN")).unlink()
    with pytest.raises(FileNotFoundError, match="that says what is said"):
        recordings.read(timit)
