"""Reading texts, and cutting sentences of equal length from them."""

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel, WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, Whitespace
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordLevelTrainer

from linattn_ref.data.text import Text, choose_sentences, read_reviews, read_text

CLS, SEP = 1, 2
TEXTS = Path(__file__).with_name("texts")


@pytest.fixture
def tokenizer():
    words = ["[UNK]", "[CLS]", "[SEP]", *"abcdefg", "##x"]
    tokenizer = Tokenizer(WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    return tokenizer


@pytest.fixture
def text():
    return Text("eight", ["a b", "axxx", "a b c d e f", "ax bx", "b c d", "a", "c d e f", "g f e d"], "")


def write(path, content):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# --- Reading --------------------------------------------------------------------------------------------------------

CSV = 'text,label,source\n"A film, ""long"".<br />\nTwo lines.",1,imdb\nshort,0,rotten_tomatoes\nCafé,0,imdb\n'


def test_reviews_of_one_source_as_they_stand(tmp_path):
    path = write(tmp_path / "reviews.csv", CSV)
    text = read_reviews(path)
    assert text.documents == ['A film, "long".<br />\nTwo lines.', "Café"]
    assert text.sha256 == hashlib.sha256(CSV.encode()).hexdigest()
    assert text.name == "reviews.csv, source imdb"
    assert read_reviews(path, "rotten_tomatoes").documents == ["short"]


@pytest.mark.parametrize(
    ("content", "documents"),
    [
        ("one\ntwo\n\nthree", ["one two", "three"]),
        ("\n\none \n two\r\n \t\r\n\r\n\r\nthree\n\n", ["one two", "three"]),
        ("one\ntwo\nthree\n", ["one", "two", "three"]),
        ("\ufeffone", ["one"]),
        ("Grüße, 世界", ["Grüße, 世界"]),
    ],
    ids=["paragraphs", "paragraphs, untidy", "lines", "byte order mark", "not ASCII"],
)
def test_documents_of_a_file(tmp_path, content, documents):
    text = read_text(write(tmp_path / "text.txt", content))
    assert text.documents == documents
    assert text.name == "text.txt"
    assert text.sha256 == hashlib.sha256(content.encode()).hexdigest()


@pytest.mark.parametrize("content", ["", " \n\t\r\n\n ", "\ufeff"])
def test_a_text_with_nothing_in_it(tmp_path, content):
    with pytest.raises(ValueError, match=r"text\.txt: there is no text in it"):
        read_text(write(tmp_path / "text.txt", content))


def test_a_text_that_is_not_utf8(tmp_path):
    with pytest.raises(ValueError, match=r"text\.txt: expected UTF-8, but byte 3 is not"):
        read_text(write(tmp_path / "text.txt", b"abc\xe9t\xe9"))


def test_a_text_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "nowhere.txt")


# --- Choosing -------------------------------------------------------------------------------------------------------


def test_long_enough_documents_are_cut_between_the_special_tokens(text, tokenizer):
    sentences = choose_sentences(text, tokenizer, count=5, length=6, rng=np.random.default_rng(0))
    assert sentences.tokens.shape == (5, 6)
    # Those with at least 4 pieces ("axxx" is a ##x ##x ##x), each once, whatever the order.
    assert sorted(sentences.documents) == [1, 2, 3, 6, 7]
    assert (sentences.tokens[:, 0] == CLS).all()
    assert (sentences.tokens[:, -1] == SEP).all()
    for tokens, index in zip(sentences.tokens, sentences.documents, strict=True):
        pieces = tokenizer.encode(text.documents[index], add_special_tokens=False).ids
        assert tokens[1:-1].tolist() == pieces[:4]


def test_the_seed_decides_and_fewer_are_the_first_of_more(text, tokenizer):
    def draw(count, seed):
        return choose_sentences(text, tokenizer, count=count, length=5, rng=np.random.default_rng(seed)).documents

    assert (draw(6, 0) == draw(6, 0)).all()
    assert (draw(3, 0) == draw(6, 0)[:3]).all()
    assert len({tuple(draw(6, seed)) for seed in range(5)}) > 1


def of_words(text):
    """A tokenizer that knows the words of a text, cut as BERT cuts: at spaces, punctuation and Chinese characters."""
    tokenizer = Tokenizer(WordLevel({}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    tokenizer.train_from_iterator(text.documents, WordLevelTrainer(special_tokens=["[UNK]", "[CLS]", "[SEP]"]))
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    return tokenizer


@pytest.mark.parametrize("length", [64, 512])
@pytest.mark.parametrize(
    "layout", [str, lambda content: content.replace("\n\n", "\n")], ids=["as it is", "without blank lines"]
)
@pytest.mark.parametrize("name", ["hard_wrapped.txt", "one_line.txt", "chinese.txt"])
def test_any_text_of_enough_words_does(tmp_path, name, layout, length):
    content = layout((TEXTS / name).read_text(encoding="utf-8"))
    text, told = read_text(write(tmp_path / name, content)), []
    tokenizer = of_words(text)
    count = 40  # more than there are
    sentences = choose_sentences(
        text, tokenizer, count=count, length=length, rng=np.random.default_rng(0), say=told.append
    )
    pieces, begins = [], []
    for document in text.documents:
        begins.append(len(pieces))
        pieces += tokenizer.encode(document, add_special_tokens=False).ids
    there = len(pieces) // (length - 2)
    assert 1 <= there < count
    assert sentences.tokens.shape == (there, length)
    assert (sentences.tokens[:, [0, -1]] == (CLS, SEP)).all()
    stretches = [pieces[i * (length - 2) : (i + 1) * (length - 2)] for i in range(there)]
    found = [stretches.index(tokens[1:-1].tolist()) for tokens in sentences.tokens]
    assert sorted(found) == list(range(there))  # all of them, each once
    for i, document in zip(found, sentences.documents, strict=True):
        assert begins[document] <= i * (length - 2) < [*begins, len(pieces)][document + 1]
    assert len(told) == 2
    assert re.fullmatch(
        rf"{name}: \d+ of {len(text.documents)} documents have at least {length - 2} word pieces.*", told[0]
    )
    assert told[1] == f"{name}: this makes {there} sentences of {length} tokens; 40 were asked for"


def test_nothing_is_said_where_documents_are_long_enough(text, tokenizer):
    choose_sentences(text, tokenizer, count=5, length=6, rng=np.random.default_rng(0), say=pytest.fail)


def test_joined_documents_are_drawn_by_the_seed(text, tokenizer):
    def draw(count, seed):
        return choose_sentences(text, tokenizer, count=count, length=6, rng=np.random.default_rng(seed)).tokens

    assert (draw(6, 0) == draw(6, 0)).all()
    assert (draw(6, 0) == draw(7, 0)[:6]).all()
    assert not all((draw(6, seed) == draw(6, 0)).all() for seed in range(1, 5))


def test_a_text_that_is_too_short_for_one_sentence(text, tokenizer):
    with pytest.raises(ValueError, match="eight: 28 word pieces in all, 31 are needed for a sentence"):
        choose_sentences(text, tokenizer, count=1, length=33, rng=np.random.default_rng(0))


def test_a_text_that_the_tokenizer_does_not_know(tokenizer):
    told = []
    chinese = read_text(TEXTS / "chinese.txt")
    choose_sentences(chinese, tokenizer, count=1, length=4, rng=np.random.default_rng(0), say=told.append)
    assert told == ["chinese.txt: the tokenizer does not know 50% of the tokens"]


@pytest.mark.parametrize(("name", "values"), [("count", (0, 6)), ("length", (1, 2))])
def test_impossible_numbers(text, tokenizer, name, values):
    with pytest.raises(ValueError, match=f"{name}: expected at least"):
        choose_sentences(text, tokenizer, count=values[0], length=values[1], rng=np.random.default_rng(0))


def test_unfit_tokenizers(text, tokenizer):
    def choose():
        choose_sentences(text, tokenizer, count=1, length=4, rng=np.random.default_rng(0))

    tokenizer.enable_truncation(5)
    with pytest.raises(ValueError, match="neither cuts nor pads"):
        choose()
    tokenizer.no_truncation()
    tokenizer.enable_padding(length=5)
    with pytest.raises(ValueError, match="neither cuts nor pads"):
        choose()
    tokenizer.no_padding()
    choose()
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", CLS)])
    with pytest.raises(ValueError, match="adds two special tokens"):
        choose()
