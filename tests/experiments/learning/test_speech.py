"""Networks learn phonemes: what they are given, a run, its command."""

import numpy as np
import pytest

from linattn_ref import cli
from linattn_ref.data.speech import Corpus, Utterances
from linattn_ref.experiments.learning import learn, speech, speech_frames
from linattn_ref.nn import ctc

TINY = speech.Shape(width=16, hidden=32, heads=2, layers=1, frames=120, lstms=1)


def made_up(count, rng):
    """Each label is a channel that is loud for nine frames; nothing of it is speech."""
    labels = [rng.integers(1, 5, rng.integers(3, 7)) for _ in range(count)]
    features = []
    for said in labels:
        loud = np.zeros((12 * len(said), 40), np.float16)
        for i, label in enumerate(said):
            loud[12 * i : 12 * i + 9, label] = 3
        features.append(loud + 0.1 * rng.standard_normal(loud.shape).astype(np.float16))
    starts = [0.12 * np.arange(len(said)) for said in labels]
    return Utterances(features, labels, starts, ["" for _ in labels], ["" for _ in labels])


@pytest.fixture
def corpus():
    rng = np.random.default_rng(0)
    parts = {part: made_up(count, rng) for part, count in (("training", 60), ("validation", 8), ("test", 8))}
    return Corpus(parts, ("", "a", "b", "c", "d"), "made up", "0" * 64)


def test_stacked_frames():
    """Row ``i`` is frames ``3 i - 3`` to ``3 i + 3``, 0 beyond the ends."""
    features = np.arange(1, 11, dtype=np.float32)[:, None] * np.ones(2, np.float32)
    stacked = speech_frames.stack(features)
    assert stacked.shape == (4, 14)
    np.testing.assert_array_equal(stacked[1, ::2], [1, 2, 3, 4, 5, 6, 7])
    np.testing.assert_array_equal(stacked[0, ::2], [0, 0, 0, 1, 2, 3, 4])
    np.testing.assert_array_equal(stacked[3, ::2], [7, 8, 9, 10, 0, 0, 0])


def test_what_cannot_be_said_in_so_few_frames_is_left_out(corpus):
    training = corpus.parts["training"]
    training.labels[0] = np.tile([1, 2], 15)  # fewer than its frames, more than its stacked ones
    found = speech_frames.in_order(training)
    assert len(found.stacked) == 59
    assert (np.diff([len(each) for each in found.stacked]) >= 0).all()
    assert speech_frames.needed(np.array([1, 1, 2, 2, 2])) == 8
    assert speech_frames.left_out(corpus) == {"training": 1, "validation": 0, "test": 0}
    for first in (0, 30, 58):
        rows = found.rows(first, 100)
        assert rows.start == first < rows.stop
        assert len(found.stacked[rows][-1]) * (rows.stop - first) <= 100


def test_a_part_of_which_nothing_is_left(corpus):
    test = corpus.parts["test"]
    test.labels[:] = [np.tile([1, 1], 20)] * len(test.labels)
    with pytest.raises(ValueError, match="each utterance for test has more labels than frames, of which one is 30 ms"):
        speech.begin(data=corpus, shape=TINY)
    with pytest.raises(ValueError, match="joined: expected 1 for recordings"):
        speech.begin(data=corpus, shape=TINY, joined=2)


@pytest.mark.slow
@pytest.mark.parametrize("attention", speech.NAMES)
def test_every_network_takes_a_step(tmp_path, corpus, attention):
    run = learn.run(speech.begin, tmp_path, data=corpus, attention=attention, steps=2, shape=TINY).run
    result = run.facts["result"]
    assert result["utterances"] == 8
    shown = result["utterance"]
    assert len(shown["symbols"]) == len(shown["starts"]) == max(map(len, corpus.parts["test"].labels))
    assert all(len(row) == -(-len(shown["features"]) // 3) for row in shown["likely"].values())


def test_frames_that_are_not_stacked(corpus):
    """Each of 40 channels is heard alone, and an utterance that stacked frames are too few for is not left out."""
    corpus.parts["test"].labels[0] = np.tile([1, 2], 15)
    ready = speech.begin(data=corpus, shape=TINY, unstacked=True)
    assert (ready.params.stem.w.shape[0], ready.notes) == (corpus.parts["test"].features[0].shape[1], ())
    assert len(speech.begin(data=corpus, shape=TINY).notes) == 1


@pytest.mark.slow
def test_a_network_says_something_of_each_frame_that_is_not_stacked(tmp_path, corpus):
    run = learn.run(speech.begin, tmp_path, data=corpus, steps=2, shape=TINY, unstacked=True).run
    shown = run.facts["result"]["utterance"]
    assert all(len(row) == len(shown["features"]) for row in shown["likely"].values())


@pytest.mark.slow
def test_it_learns_which_channel_is_loud(tmp_path, corpus):
    shape = TINY._replace(width=32)
    how = {"data": corpus, "attention": "softmax", "steps": 250, "peak": 1e-2, "shape": shape}
    result = learn.run(speech.begin, tmp_path, **how).run.facts["result"]
    assert result["greedy"] < 0.1
    assert result["beam"] < 0.1


@pytest.mark.slow
def test_a_batch_has_the_gradient_of_the_loss(corpus):
    """Along one direction, by a difference: padding and counts are handed on."""
    given = speech_frames.in_order(corpus.parts["validation"])
    shape = TINY._replace(frames=10_000)
    (batch,) = speech.batches("softmax", shape, given)
    params = speech.draw("softmax", shape, 280, 5, np.random.default_rng(0))
    scores, _ = speech.scores_of(params, batch, shape)
    loss, _ = ctc.forward(scores, batch.labels, frames=batch.lengths, lengths=batch.counts)
    each = [
        float(ctc.forward(s[None, :n], labels[None, :c])[0])
        for s, n, labels, c in zip(scores, batch.lengths, batch.labels, batch.counts, strict=True)
    ]
    assert float(loss) == pytest.approx(np.mean(each), rel=1e-5)


@pytest.mark.slow
def test_the_command_reads_recordings_and_says_what_is_wrong(tmp_path, recordings, capsys):
    out = tmp_path / "run"
    words = ["train", "speech", "--quick", "--data", str(recordings), "--steps", "4", "--out", str(out)]
    assert cli.main(words) == 0
    told = capsys.readouterr()
    assert "2 test utterances (recordings in data)" in told.out
    left_out, takes = told.err.splitlines()
    assert left_out == "1 of 3 utterances for test have more letters than frames, and are left out"
    assert takes.startswith("4 steps: about ")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    spoilt = recordings / "test" / "anna of test" / "0"
    for suffix, content, message in (
        (".txt", b"film %", "expected letters, digits and punctuation, got '%' in 'film %'"),
        (".flac", b"none", "not a sound that can be read"),
    ):
        spoilt.with_suffix(suffix).write_bytes(content)
        capsys.readouterr()
        assert cli.main([*words[:-1], str(tmp_path / "new")]) == 2
        told = capsys.readouterr().err
        assert message in told
        assert told.count("\n") == 1
        spoilt.with_suffix(".txt").write_bytes(b"film")
    assert not (tmp_path / "new").exists()
    assert cli.main(words) == 2  # before it reads the recordings, of which one is no sound now
    assert "run has the last.safetensors of a run" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_numbers_are_left_out_in_training_alone_and_the_same_ones_for_the_same_step(corpus):
    sorted_ = speech_frames.in_order(corpus.parts["training"])
    seeds = []
    for dropout in (0.0, 0.3):
        task = speech.task("softmax", TINY, sorted_, sorted_, dropout)
        seeds += [task.batch(np.random.default_rng(step)).seed for step in (7, 7, 8)]
    assert seeds[:3] == [None] * 3
    assert seeds[3] == seeds[4] != seeds[5]
    assert {each.seed for each in speech.batches("softmax", TINY, sorted_)} == {None}
