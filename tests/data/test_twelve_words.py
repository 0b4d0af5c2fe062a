"""The sentence of the chapters: its words find what the chapters say that they find."""

import numpy as np
import pytest

from linattn_ref.attention import softmax
from linattn_ref.data.twelve_words import WORDS, vectors


@pytest.mark.parametrize(("word", "among", "found"), [("sat", 7, "cat"), ("old", 7, "mat"), ("slept", 12, "dog")])
def test_a_verb_finds_who_and_an_adjective_what(word, among, found):
    q, k, _ = vectors()
    weights = softmax.matrix(q[[WORDS.index(word)]], k[:among])[0]
    assert WORDS[weights.argmax()] == found


def test_each_word_has_its_numbers_and_no_call_sees_another_ones_changes():
    first, second = vectors(), vectors()
    assert [x.shape for x in first] == [(len(WORDS), 4), (len(WORDS), 4), (len(WORDS), 3)]
    first[0][:] = 0
    assert all(np.count_nonzero(x) == x.size for x in second)  # elu has a kink at 0
