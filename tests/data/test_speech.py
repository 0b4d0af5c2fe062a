"""Synthesised speech: the same bytes each time, phonemes where they are heard, voices and sentences kept apart."""

import json
from importlib.util import find_spec

import numpy as np
import pytest

from linattn_ref.data import espeak, fetch, filterbank, speech, splits

needs_espeak = pytest.mark.skipif(not find_spec("espeakng_loader"), reason="needs the extra speech")
SAID = ["The plot was thin", "a bold and moving film"]


def test_plain_sentences_each_once():
    review = "Good. I liked the film a lot! <br />It was 20 years ago that I saw it. I liked the film a lot. Never,"
    review += " never again please"
    assert speech.sentences("training", [review]) == ["I liked the film a lot", "Never, never again please"]


def test_voices_of_the_parts_have_nothing_in_common():
    drawn = {
        part: {speech.draw_voice(part, np.random.default_rng(i)).variant for i in range(60)} for part in splits.PARTS
    }
    assert drawn["validation"] == {"m4", "f3"}
    assert drawn["test"] == {"m7", "f5"}
    assert drawn["training"] == set(espeak.VARIANTS) - drawn["validation"] - drawn["test"]


def test_a_microphone_adds_noise_as_far_below_as_it_says():
    """A tone at the middle of the range; what is left beside it is the noise."""
    t = np.arange(4 * espeak.RATE) / espeak.RATE
    heard = speech.through_a_microphone(
        (8000 * np.sin(2 * np.pi * 2000 * t)).astype(np.int16), np.random.default_rng(0)
    )
    assert len(heard) == 4 * speech.RATE
    power = np.abs(np.fft.rfft(heard[8000:56000])) ** 2
    tone = power[6000 - 30 : 6000 + 30].sum()
    assert 5 <= 10 * np.log10(tone / (power.sum() - tone)) <= 25.5


@needs_espeak
def test_no_such_voice():
    with pytest.raises(ValueError, match="voice: expected one of"):
        espeak.speak(SAID, espeak.Voice("en-us", "m99"))
    for name, wrong in (("speed", -5), ("speed", 451), ("speed", 175.5), ("pitch", 100), ("range", True)):
        with pytest.raises(ValueError, match=rf"voice\.{name}: expected an integer from \d+ to \d+, got {wrong}"):
            espeak.speak(SAID, espeak.Voice()._replace(**{name: wrong}))


@needs_espeak
def test_the_same_bytes_each_time_and_phonemes_in_their_places():
    first, again = (espeak.speak(SAID, espeak.Voice("en-us", "f2")) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert one.samples.tobytes() == other.samples.tobytes()
        np.testing.assert_array_equal(one.starts, other.starts)
    assert " ".join(first[1].phonemes) == "ɐ b oʊ l d æ n d m uː v ɪ ŋ f ɪ l m"
    assert (np.diff(first[1].starts) >= 0).all()
    assert 0 <= first[1].starts[0] <= first[1].starts[-1] < len(first[1].samples)
    # an s hisses: of its energy more is above 3 kHz than of a vowel's
    spoken = espeak.speak(["see"], espeak.Voice(speed=np.int64(175)))[0]
    assert spoken.phonemes == ["s", "iː"]
    middle = spoken.starts[1]
    for part, above in ((spoken.samples[:middle], True), (spoken.samples[middle:], False)):
        power = np.abs(np.fft.rfft(part.astype(float))) ** 2
        high = np.fft.rfftfreq(len(part), 1 / espeak.RATE) > 3000
        assert (power[high].sum() > power[~high].sum()) == above
    with pytest.raises(ValueError, match=r"there is nothing to say in '\.\.\.'"):
        espeak.speak(["..."])


@needs_espeak
def test_parts_that_there_are(tmp_path):
    with pytest.raises(ValueError, match="part: expected one of training, validation, test, got 'tests'"):
        speech.draw_voice("tests", np.random.default_rng(0))
    with pytest.raises(ValueError, match="part: expected one of training, validation, test, got 'tests'"):
        speech.speaker("tests", 0, ["A sentence."])
    for wrong in ({"training": 2}, {}, {"training": 2, "validation": 0, "test": 1}):
        with pytest.raises(ValueError, match=r"speakers: expected some for each of training, validation, test, got \{"):
            speech.corpus(speakers=wrong, cache=tmp_path)


@pytest.fixture(scope="module")
def reviews():
    """300 of a sentence each."""
    written = [f"{' '.join(words)} and a {noun} too." for words, noun in _pairs()]
    found = splits.Labelled("made up", written, np.zeros(len(written), int), "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splits, "read_labelled", lambda file: found)
        patch.setattr(fetch, "open_content", lambda package: None)
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, reviews):
    """Of four speakers, each of which is a process of its own."""
    speakers = {"training": 1, "validation": 2, "test": 1}
    return speech.corpus(speakers=speakers, each=9, cache=tmp_path_factory.mktemp("corpus"))


def test_parts_differ_and_every_phoneme_has_its_place(corpus):
    assert [len(part.texts) for part in corpus.parts.values()] == [9, 18, 9]
    texts = [set(part.texts) for part in corpus.parts.values()]
    assert sum(map(len, texts)) == len(set.union(*texts))
    for part in corpus.parts.values():
        for features, labels, starts in zip(part.features, part.labels, part.starts, strict=True):
            assert features.shape[1] == filterbank.CHANNELS
            assert len(labels) == len(starts)
            assert 0 < labels.min() <= labels.max() < len(corpus.symbols)
            assert starts.max() < len(features) * filterbank.STEP + 0.1


def test_a_corpus_is_made_once_and_again_where_it_is_damaged(tmp_path, corpus):
    small = {"speakers": dict.fromkeys(splits.PARTS, 1), "each": 1, "joined": 3, "cache": tmp_path}
    made = speech.corpus(**small)
    (path,) = tmp_path.glob("*.npz")
    before = path.read_bytes()
    note = json.loads(path.with_suffix(".json").read_text())
    assert note["sha256"] == made.sha256
    path.write_bytes(before[:-1] + b"x")
    assert speech.corpus(**{**small, "cache": str(tmp_path)}).sha256 == made.sha256
    assert path.read_bytes() == before
    joined = made.parts["test"]
    first, second, third = joined.texts[0].split(". ")
    assert corpus.parts["test"].texts[:3] == [first, second, third]  # of the same order, in threes
    assert min(map(len, joined.features)) > max(map(len, corpus.parts["test"].features))
    assert len({first, second, third}) == 3


def test_all_sentences_are_said_before_one_is_said_again(corpus):
    """Of 300 some 15 are for validation."""
    texts = corpus.parts["validation"].texts
    different = len(set(texts))
    assert 9 < different < 18
    assert len(set(texts[:different])) == different


def _pairs():
    nouns = ["film", "plot", "song", "scene", "joke", "story", "voice", "face", "house", "dog"]
    return [((first, "has", "a", second), third) for first in nouns for second in nouns for third in nouns[:3]]
