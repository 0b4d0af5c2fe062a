"""What somebody said, as letters: the rules by which punctuation, digits and accents of a transcript go.

>>> plain("Chapter 2: the café’s 1,500 guests")
("chapter two the cafe's one thousand five hundred guests", ('accents', 'digits', 'punctuation'))

Numbers are whole ones, and read as English counts; what follows a point is read digit by digit. A zero at the front
means that all digits are, as in 007. More than twelve digits without commas are read one by one. An apostrophe at both
ends of a word is a quotation mark. Whoever said "nineteen eighty-four" for 1984 is learned wrongly: with many numbers,
have them in words; 12 345 is read as two numbers. A sign that is spoken (%, &, $), a number that is no count up to the
billions (2nd, -5, .25, 1,50,000, 3 000), digits of other scripts and a letter without a Latin one in it are errors,
since any rule would be a guess.
"""

import re
import unicodedata

__all__ = ["LETTERS", "in_words", "plain"]

LETTERS = (*"abcdefghijklmnopqrstuvwxyz", "'", " ")
APOSTROPHES = str.maketrans({"‘": "'", "’": "'", "ʼ": "'", "`": " "})
LATIN = str.maketrans({"ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "ł": "l"})  # which Unicode does not take apart
NUMBER = re.compile(  # neither after a letter, a sign or a part of a number, nor before a letter or another part
    r"(?<![^\W_])(?<!\W[-.])(?<!^[-.])(?<!\d[.,٫٬])(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.(?P<rest>[0-9]+))?"
    r"(?![^\W_])(?![.,٫٬]\d|\s0\d\d\b)"
)
QUOTED = re.compile("^'+(.*[^'])'+$")
SPOKEN = "%&@#*/§"  # signs of punctuation, to Unicode, that stand for a word
# Not by `num2words`, which writes hyphens, commas and "and", to be taken out again.
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEENS = ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
THOUSANDS = ("", " thousand", " million", " billion")


def plain(text: str) -> tuple[str, tuple[str, ...]]:
    """A transcript in `LETTERS` alone, and the kinds of signs in it that are no letters.

    Capitals and spaces do not count: they carry nothing that is heard.

    Raises
    ------
    ValueError
        A sign that no rule is for, a number that is no count, or no word at all.
    """
    found, letters = [], text.lower()
    for kind, table in (("punctuation", APOSTROPHES), ("accents", LATIN)):
        if letters != (letters := letters.translate(table)):
            found.append(kind)
    if re.search(r"\d", letters):
        found.append("digits")
        letters = NUMBER.sub(_spoken, letters)
    if wrong := re.search(r"[-.]?\w*\d(?:[\w,]|\.\w)*", letters):
        raise ValueError(f"how {wrong[0]!r} in {text[:60]!r} is spoken is not known: write it in words")
    kept: list[str] = []
    for letter in unicodedata.normalize("NFKD", letters):
        kind = unicodedata.category(letter)
        if letter in LETTERS or letter.isspace():
            kept.append(letter)
        elif kind[0] == "M":
            found.append("accents")
        elif kind[0] == "P" and letter not in SPOKEN:
            found.append("punctuation")
            kept.append(" ")
        else:
            raise ValueError(f"expected letters, digits and punctuation, got {letter!r} in {text[:60]!r}")
    split = "".join(kept).split()
    unquoted = [QUOTED.sub(r"\1", word) for word in split if word.strip("'")]
    if unquoted != split:
        found.append("punctuation")
    words = " ".join(unquoted)
    if not re.search("[a-z]", words):
        raise ValueError(f"expected words, got {text[:60]!r}")
    return words, tuple(sorted(set(found)))


def _spoken(match: re.Match[str]) -> str:
    whole, rest = match["whole"].replace(",", ""), match["rest"]
    if "," in match["whole"] and len(whole) > 3 * len(THOUSANDS):
        return match[0]  # which is told as what nobody knows
    said = in_words(whole)
    return f" {said} point {_one_by_one(rest)} " if rest else f" {said} "


def in_words(number: str) -> str:
    """Digits as English words.

    >>> in_words("90210"), in_words("007")
    ('ninety thousand two hundred ten', 'zero zero seven')
    """
    if len(number) > 3 * len(THOUSANDS) or (number[0] == "0" and number != "0"):
        return _one_by_one(number)
    groups = [number[max(0, end - 3) : end] for end in range(len(number), 0, -3)]
    said = [_hundreds(int(group)) + scale for group, scale in zip(groups, THOUSANDS, strict=False) if int(group)]
    return " ".join(reversed(said)) or DIGITS[0]


def _one_by_one(number: str) -> str:
    return " ".join(DIGITS[int(digit)] for digit in number)


def _hundreds(count: int) -> str:
    """1 to 999."""
    hundreds, rest = divmod(count, 100)
    tens, ones = divmod(rest, 10)
    said = [f"{DIGITS[hundreds]} hundred"] if hundreds else []
    if tens == 1:
        said.append(TEENS[ones])
    else:
        said += [TENS[tens - 2]] if tens else []
        said += [DIGITS[ones]] if ones else []
    return " ".join(said)
