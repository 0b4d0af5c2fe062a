"""Transcripts as letters, by rule."""

import pytest

from linattn_ref.data import transcripts


@pytest.mark.parametrize(
    ("text", "letters", "unlike"),
    [
        ("NORTHANGER  ABBEY'S", "northanger abbey's", ()),
        ("Don’t - really, “don’t”!", "don't really don't", ("punctuation",)),
        ("twenty-one_films", "twenty one films", ("punctuation",)),
        ("Äpfel straße naïve", "apfel strasse naive", ("accents",)),
        ("0 films", "zero films", ("digits",)),
        ("in 1984", "in one thousand nine hundred eighty four", ("digits",)),
        ("agent 007", "agent zero zero seven", ("digits",)),
        ("1,500,000 of them", "one million five hundred thousand of them", ("digits",)),
        ("15 or 3.05", "fifteen or three point zero five", ("digits",)),
        ("chapter 2.", "chapter two", ("digits", "punctuation")),
        ("1984-85", "one thousand nine hundred eighty four eighty five", ("digits", "punctuation")),
        ("'hello' she said", "hello she said", ("punctuation",)),
        ("‘hello’ she said, `so what`", "hello she said so what", ("punctuation",)),
        ("rock ‘n’ roll, ‘tis", "rock n roll 'tis", ("punctuation",)),
        ("the '90' bus", "the ninety bus", ("digits", "punctuation")),
        ("'1984'", "one thousand nine hundred eighty four", ("digits", "punctuation")),
        ("I couldn't've, rock'n'roll", "i couldn't've rock'n'roll", ("punctuation",)),
        ("y'all'd say I'd've", "y'all'd say i'd've", ()),
        ("'don't' ''really''", "don't really", ("punctuation",)),
        ("'tis the dogs'", "'tis the dogs'", ()),
        ("12 345 films", "twelve three hundred forty five films", ("digits",)),
        ("at 10:30", "at ten thirty", ("digits", "punctuation")),
        ("9999999999999 a", " ".join(["nine"] * 13) + " a", ("digits",)),
        ("999999999999 a", "nine hundred ninety nine billion nine hundred ninety nine million nine hundred ninety nine"
         " thousand nine hundred ninety nine a", ("digits",)),
    ],
)  # fmt: skip
def test_by_rule(text, letters, unlike):
    assert transcripts.plain(text) == (letters, unlike)
    assert set(letters) <= set(transcripts.LETTERS)
    assert transcripts.plain(letters) == (letters, ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("50% of it", "got '%' in '50% of it'"),
        ("$ 5", r"got '\$'"),
        ("a & b", "got '&'"),
        ("1/2", "got '/'"),
        ("2² films", "how '2²' in"),
        ("the 2nd film", "how '2nd' in 'the 2nd film' is spoken is not known: write it in words"),
        ("mp3", "how 'mp3'"),
        (".25 cents", "how '.25'"),
        ("at -5 degrees", "how '-5'"),
        ("1,50,000 people", "how '1,50,000'"),
        ("12,3456", "how '12,3456'"),
        ("it was 1,5", "how '1,5'"),
        ("10,000,00", "how '10,000,00'"),
        ("on 1.5.2", "how '1.5.2'"),
        ("3 000 films", "how '3'"),
        ("００７ agents", "how '００７'"),
        ("٠٠٧ agents", "how '٠٠٧'"),
        ("5٫5 per cent", "how '5'"),
        ("1,000,000,000,000 of them", "how '1,000,000,000,000'"),
        ("фильм", "got 'ф'"),
        ("世界", "got '世'"),
        ("", "expected words, got ''"),
        (" ... ", "expected words"),
        ("'", "expected words"),
    ],
)
def test_what_no_rule_is_for(text, message):
    with pytest.raises(ValueError, match=message):
        transcripts.plain(text)
