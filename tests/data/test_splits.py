"""A split that the words themselves decide, and subwords that come out the same each time."""

import numpy as np
import pytest

from linattn_ref.data import splits, subwords

TEXTS = [f"text number {i}" for i in range(3000)]
LABELS = np.arange(3000) % 2


def labelled(texts=TEXTS, labels=LABELS):
    return splits.Labelled("x", texts, labels, "")


def test_each_text_is_in_one_part_and_keeps_its_label():
    parts = splits.split(labelled())
    assert sorted(text for part in parts.values() for text in part.texts) == sorted(TEXTS)
    for name, part in parts.items():
        assert all(splits.part_of(text) == name for text in part.texts)
        assert all(int(text.split()[-1]) % 2 == label for text, label in zip(part.texts, part.labels, strict=True))
    # Five standard deviations of a binomial count.
    for name, share in (("training", 0.85), ("validation", 0.05), ("test", 0.1)):
        assert abs(len(parts[name].texts) - 3000 * share) < 5 * np.sqrt(3000 * share * (1 - share))


def test_a_text_stays_in_its_part_from_version_to_version():
    """Another rule of the same shares would train on what earlier runs were tested on."""
    parts = {text: splits.part_of(text) for text in ("a film", "a plot", "a joke", "a story", "a face")}
    assert list(parts.values()) == ["training", "validation", "test", "test", "training"]


def test_duplicates_are_kept_once_and_never_in_two_parts():
    twice = [*TEXTS, *(f"  {text.upper()} " for text in TEXTS)]
    parts = splits.split(labelled(twice, np.tile(LABELS, 2)))
    assert {name: part.texts for name, part in parts.items()} == {
        name: part.texts for name, part in splits.split(labelled()).items()
    }


def test_reading(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('text,label,source\n"one, two",1,a\nthree,0,b\n', encoding="utf-8")
    found = splits.read_labelled(path, "a")
    assert (found.texts, found.labels.tolist()) == (["one, two"], [1])
    assert splits.read_labelled(path).labels.tolist() == [1, 0]
    for content, message in (
        ("", "expected columns text, label and source"),
        ("text,label\na,1\n", "expected columns text, label and source"),
        ("text,label,source\na,x,a\n", "expected labels 0, 1, ..., got 'x'"),
        ("text,label,source\na,9223372036854775808,a\n", "expected labels 0, 1, ..., got '9223372036854775808'"),
        ("text,label,source\na,1,c\n", "no text whose source is 'a'"),
        ('text,label,source\n"a,1,a\n', "not CSV in UTF-8"),
        ("text,label,source\n\xff,0,a\n", "not CSV in UTF-8: .* position 18"),
    ):
        path.write_bytes(content.encode("latin-1"))
        with pytest.raises(ValueError, match=rf"a\.csv: {message}"):
            splits.read_labelled(path, "a")


def test_a_vocabulary_is_the_same_each_time_and_loses_nothing():
    first, again = (subwords.train(TEXTS, 280) for _ in range(2))
    assert subwords.fingerprint(first) == subwords.fingerprint(again)
    assert subwords.fingerprint(first) != subwords.fingerprint(subwords.train(TEXTS[:5], 270))
    pieces = subwords.stream(["text é 5", "7"], first)
    assert (pieces == subwords.SEP).sum() == 2
    assert pieces[-1] == subwords.SEP
    assert first.decode(pieces[:-1].tolist()) == " text é 5 7"
    with pytest.raises(ValueError, match="texts: a vocabulary of 900 pieces was asked for, they have"):
        subwords.train(["a"], 900)
    for size in (258, 100, -1):
        with pytest.raises(ValueError, match=rf"size: expected at least 259 pieces .3 special, 256 bytes., got {size}"):
            subwords.train(TEXTS, size)
    assert subwords.train(TEXTS, 259).get_vocab_size() == 259


def test_padding_keeps_what_stands_around_a_text():
    from tokenizers.processors import TemplateProcessing

    tokenizer = subwords.train(TEXTS, 280)
    tokenizer.post_processor = TemplateProcessing(
        single="[MASK] $A [SEP]", special_tokens=[("[MASK]", 2), ("[SEP]", 1)]
    )
    tokens, key_mask = subwords.pad(["text number 1234567", "a"], tokenizer, 5)
    assert tokens[:, 0].tolist() == [2, 2]
    assert tokens[0, -1] == 1
    assert key_mask.sum(axis=-1).tolist() == [5, 4 if tokens[1, 2] != 1 else 3]
    assert (tokens[~key_mask] == subwords.PAD).all()
    with pytest.raises(ValueError, match=r"length: expected at least 3 tokens \(2 are special\), got 2"):
        subwords.pad(["a"], tokenizer, 2)
    for single, place, token in (("$A [SEP]", -1, 1), ("[MASK] $A", 0, 2)):
        tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=[("[MASK]", 2), ("[SEP]", 1)])
        assert subwords.pad(["text number 1234567"], tokenizer, 5).tokens[0, place] == token


def test_a_row_without_a_text_is_told(tmp_path):
    (tmp_path / "x.csv").write_text("label,source,text\n1,imdb,good\n0,imdb\n")
    with pytest.raises(ValueError, match=r"x\.csv: a row ends before its text"):
        splits.read_labelled(tmp_path / "x.csv")


def test_a_text_with_a_comma_that_is_not_quoted_is_told(tmp_path):
    """Its row would have another source, and be lost without a word."""
    (tmp_path / "x.csv").write_text("text,label,source\ngood,1,imdb\nfine, but long,1,imdb\n")
    with pytest.raises(ValueError, match=r"x\.csv: a row has more columns than the first"):
        splits.read_labelled(tmp_path / "x.csv", "imdb")


def test_a_long_text_is_a_text(tmp_path):
    (tmp_path / "x.csv").write_text(f"text,label,source\n{'a ' * 10**5},1,imdb\n")
    assert len(splits.read_labelled(tmp_path / "x.csv").texts[0]) == 2 * 10**5
