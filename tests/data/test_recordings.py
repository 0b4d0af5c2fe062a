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
        path = tmp_path / part / "DR1" / speaker / "SX1.WAV"
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
    found = recordings.read(str(timit))
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
    assert told == [
        f"{librispeech}: speakers in several parts: 1, 19 for one",
        f"{librispeech}: 1 of 3 sounds have 8000 samples per second and are resampled to 16000",
    ]


@pytest.mark.slow
def test_phones_begin_at_samples_of_their_own_sound(timit):
    sound(timit / "TEST" / "DR1" / "MC" / "SX1.WAV", rate=32000, seconds=0.1)
    np.testing.assert_allclose(recordings.read(timit).parts["test"].starts[0], [0, 0.025, 0.05, 2500 / 32000])


def test_of_several_channels_the_first_is_taken_and_it_is_said(timit):
    told, path = [], timit / "TEST" / "DR1" / "MC" / "SX1.WAV"
    before = recordings.read(timit, say=told.append).parts["test"].features[0]
    rate, samples = wavfile.read(path)
    wavfile.write(path, rate, np.stack([samples, samples[::-1]], axis=1))
    np.testing.assert_array_equal(recordings.read(timit, say=told.append).parts["test"].features[0], before)
    assert told == [f"{timit}: 1 of 3 sounds have 2 channels, of which the first is taken"]


def spoil(folder, name, content):
    path = next(folder.rglob(name))
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("SX1.WAV", b"no sound", "not a sound that can be read"),
        ("SX1.PHN", b"0 800 zz\n", "one of TIMIT's phones, got .*zz"),
        ("SX1.PHN", b"800 aa\n", "expected a first sample"),
        ("SX1.PHN", b"0 x aa\n", "expected a first sample"),
        ("SX1.PHN", b"0 800 aa\n800 700 iy\n", "phones one after the other, got .*'700'"),
        ("SX1.PHN", b"500 800 aa\n0 500 iy\n", "phones one after the other, got .*'0'"),
        ("SX1.PHN", b"", "SX1.PHN: there is no phone in it"),
        ("SX1.PHN", b"0 800 h\xe9\n", "SX1.PHN: not a text in UTF-8 .invalid continuation byte at byte 7"),
        ("SX1.PHN", b"0 800 aa\n9000 9500 iy\n", "SX1.WAV: a phone begins at sample 9000, and there are 3200"),
    ],
)
def test_a_file_that_is_wrong(timit, name, content, message):
    spoil(timit, name, content)
    with pytest.raises(ValueError, match=message):
        recordings.read(timit)


@pytest.mark.parametrize(
    ("samples", "rate", "message"),
    [
        (np.full(4000, np.nan, np.float32), 16000, "SX1.WAV: expected samples that are numbers"),
        (np.zeros(4000, np.int16), 1, "SX1.WAV: expected at least 4000 samples per second, got 1"),
        (np.zeros(100, np.int16), 16000, "SX1.WAV: .*at least 400 samples .25 ms., got .100,"),
    ],
)
def test_a_sound_that_is_wrong(timit, samples, rate, message):
    path = next(timit.rglob("SX1.WAV"))
    wavfile.write(path, rate, samples)
    path.with_suffix(".PHN").write_text("0 50 aa\n")
    with pytest.raises(ValueError, match=message):
        recordings.read(timit)


def test_a_transcript_with_a_symbol_that_is_unknown(librispeech):
    spoil(librispeech, "19-198.trans.txt", b"19-198-0000 CHAPTER 50%\n")
    with pytest.raises(ValueError, match=r"19-198\.trans\.txt: expected letters, digits and punctuation, got '%'"):
        recordings.read(librispeech)


@pytest.fixture
def own(tmp_path):
    """A sound a part, with its transcript beside it."""
    for part, speaker in (("train", "anna"), ("dev", "ben"), ("test", "clara")):
        sound(tmp_path / part / speaker / "1.wav")
        (tmp_path / part / speaker / "1.txt").write_text("a film", encoding="utf-8")
    return tmp_path


def read(folder):
    """The corpus and what was said of it."""
    told = []
    return recordings.read(folder, say=told.append), told


def test_punctuation_and_digits_of_a_transcript_go_by_rule_and_it_is_said(own):
    (own / "test" / "clara" / "1.txt").write_text("Chapter 2: the café.", encoding="utf-8")
    found, told = read(own)
    assert "".join(found.symbols[i] for i in found.parts["test"].labels[0]) == "chapter two the cafe"
    assert found.parts["test"].texts == ["Chapter 2: the café."]
    assert told == [
        f"{own}: 1 of 3 transcripts have accents, digits, punctuation:"
        " 'Chapter 2: the café.' is learned as 'chapter two the cafe'"
    ]
    (own / "test" / "clara" / "1.txt").write_text("...", encoding="utf-8")
    with pytest.raises(ValueError, match=r"1\.txt: expected words, got '\.\.\.'"):
        recordings.read(own)


def test_sounds_in_other_formats_are_left_out_and_it_is_said(own):
    before, told = read(own)
    assert told == []
    for name in ("2.mp3", "3.MP3", "4.ogg"):
        (own / "train" / "anna" / name).write_bytes(b"a sound")
    after, told = read(own)
    assert after.sha256 == before.sha256
    assert told == [f"{own}: sounds in other formats are left out: 2 .mp3, 1 .ogg"]
    for path in own.rglob("*.wav"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"no sound in it .*; sounds in other formats .*: 2 \.mp3, 1 \.ogg"):
        recordings.read(own)


def test_a_sound_that_is_there_twice_is_taken_once(timit):
    """As a copy of TIMIT has it: ``SX1.WAV`` as it came, and ``SX1.WAV.wav`` as others can read it."""
    before, _ = read(timit)
    for path in list(timit.rglob("SX1.WAV")):
        path.with_name("SX1.WAV.wav").write_bytes(path.read_bytes())
        path.with_name("._SX1.WAV").write_bytes(b"\0\5\x16\7")
        path.with_name("._SX1.PHN").write_bytes(b"\0\5\x16\7")
    after, told = read(timit)
    assert after.sha256 == before.sha256
    assert {part: len(of.texts) for part, of in after.parts.items()} == dict.fromkeys(after.parts, 1)
    assert told == [
        f"{timit}: 3 sounds are there twice, as SX1.WAV and SX1.WAV.wav are, and are taken once",
        f"{timit}: 3 files of macOS (._*) are no sounds and are left out",
    ]
    for path in timit.rglob("SX1.WAV"):
        path.unlink()
    assert read(timit)[0].sha256 == before.sha256  # the other one, by the same phones


def test_what_everybody_says_is_left_out(timit):
    """And who speaks in two parts is told."""
    before, _ = read(timit)
    for path in list(timit.rglob("SX1.*")):
        path.with_name(path.name.replace("SX1", "SA2")).write_bytes(path.read_bytes())
    after, told = read(timit)
    assert after.sha256 == before.sha256
    assert told == [f"{timit}: 3 sounds of the sentences that everybody says are left out"]
    speaker = next((timit / "TEST").rglob("SX1.WAV")).parent
    other = next((timit / "TRAIN").rglob("SX1.WAV")).parent
    other.rename(other.with_name(speaker.name))
    assert read(timit)[1][1] == f"{timit}: speakers in several parts: 1, {speaker.name} for one"


def test_a_mark_of_the_byte_order_is_no_symbol(tmp_path):
    for part in ("train", "dev", "test"):
        sound(tmp_path / part / "anna" / "1.wav")
        (tmp_path / part / "anna" / "1.txt").write_bytes(b"\xef\xbb\xbfa film\r\n")
    assert recordings.read(tmp_path).parts["test"].texts == ["a film"]


def test_a_sound_in_no_folder_has_no_part(timit):
    for name in ("train_1", "testimony"):
        path = timit / f"{name}.wav"
        sound(path)
        path.with_suffix(".PHN").write_text("0 50 aa\n")
        with pytest.raises(ValueError, match=rf"{name}\.wav: the first folder says the part, .*got none"):
            recordings.read(timit)
        path.unlink()


def test_what_is_missing(timit, tmp_path_factory):
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        recordings.read(timit / "none")
    with pytest.raises(FileNotFoundError, match="there is no sound in it"):
        recordings.read(tmp_path_factory.mktemp("empty"))
    first, *others = timit.rglob("SX1.PHN")
    first.rename(first.with_suffix(".TXT"))
    with pytest.raises(FileNotFoundError, match=r"no \.phn beside it that says what is said, as beside others"):
        recordings.read(timit)
    first.with_suffix(".TXT").unlink()
    for path in others:
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no \.phn, \.txt or \.trans\.txt beside it"):
        recordings.read(timit)
