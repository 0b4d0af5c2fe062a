"""WordPiece in plain Python, against the package `tokenizers`."""

import pytest

from linattn_ref.data.fetch import MODEL, REVIEWS, open_content
from linattn_ref.data.text import ALICE, read_reviews, read_text
from linattn_ref.models.bert import tokenizer, word_pieces

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "anim", "un", "aff", "able", "etude", "3", "14", "dont", "σας", "русскии", "東", "ab", "a" * 100]
LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789'.,!?-$+<=>^`|~", "é", "σ", "ß", "京", "“", "—"]
TEXTS = [
    "The animal didn't cross the street, because it was too tired!",
    "Unaffable \u00c9TUDE e\u0301tude 3.14 don't --- $5<=^`|~ x_y",
    "\u6771\u4eac\u6771 ab\u6771ab",
    "one[MASK]two [SEP][CLS] [mask] [ MASK ] [UNK]ab[PAD]",
    "\u03a3\u0391\u03a3 \u03c3\u03b1\u03c2 \u0130stanbul stra\u00dfe \u0420\u0443\u0441\u0441\u043a\u0438\u0439",
    "a\tb\nc\rd\x0be\x0cf\x1cg\x85h\u00a0i\u2028j\u3000k",
    "zero\u200bwidth \ufeffmark \ufffd \x00 \x7f soft\u00adhyphen \ue000 \u0378",
    "\u201cquoted\u201d \u2014 dashed \u00bf \u00a7 \u00b6 \u20ac",
    "\U0001f44d\U0001f3fd \uff21\uff42 \ufb01 \u00bd \ud55c \u0928\u093f",
    f"{'a' * 100} {'a' * 101} {'ab' * 50} {'b' * 101}",
    "",
    " \n ",
]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The library's tokenizer with some words, all letters and all letters behind others."""
    folder = tmp_path_factory.mktemp("pieces")
    pieces = dict.fromkeys([*SPECIAL, *WORDS, *LETTERS, *(f"##{piece}" for piece in [*WORDS, *LETTERS])])
    (folder / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    return tokenizer.read(folder, "bert")


@pytest.mark.parametrize("text", TEXTS)
def test_the_pieces_are_those_of_the_library(small, text):
    assert word_pieces.encode(text, small.get_vocab()) == small.encode(text).tokens


def test_the_longest_piece_is_taken(small):
    pieces = word_pieces.encode("Unaffable animals", small.get_vocab())
    assert pieces == ["[CLS]", "un", "##aff", "##able", "anim", "##a", "##l", "##s", "[SEP]"]


@pytest.mark.network
def test_the_pieces_of_real_texts_with_the_real_vocabulary():
    library = tokenizer.read(open_content(MODEL), "bert")
    vocabulary = library.get_vocab()
    reviews = read_reviews(open_content(REVIEWS)).documents[:300]
    for text in [*TEXTS, *reviews, *read_text(ALICE).documents[:200]]:
        assert word_pieces.encode(text, vocabulary) == library.encode(text).tokens, text
