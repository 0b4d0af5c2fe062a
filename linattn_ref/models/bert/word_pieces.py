"""WordPiece (Devlin et al. 2019) in plain Python, for a browser, which has no `tokenizers`.

A text becomes lower case without accents; words are what stands between spaces, and each punctuation mark and each
Chinese sign is a word of its own. From the left, a word is cut into the longest pieces that the vocabulary has; all but
the first of them are written with "##" in front:

    "Unaffable!"  ->  [CLS]  una  ##ffa  ##ble  !  [SEP]

A word with a part that no piece begins is "[UNK]" as a whole. This is the tokenizer of an uncased BERT; in others some
of these rules are options, which `linattn_ref.models.bert.tokenizer` reads.
"""

import re
import unicodedata
from collections.abc import Container

__all__ = ["encode"]

MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # what a text may contain as it is
LONGEST = 100  # letters of a word that is looked up
CHINESE = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F)),
    *((0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)
SIGNS = "$+<=>^`|~"  # of ASCII, besides what Unicode calls punctuation


def encode(text: str, vocabulary: Container[str]) -> list[str]:
    """Return the pieces of a text, between "[CLS]" and "[SEP]".

    Characters that Unicode has added or reclassified since 2016 may be treated otherwise than by `tokenizers`, whose
    tables are older.
    """
    found = ["[CLS]"]
    for part in re.split(f"({'|'.join(map(re.escape, MARKS))})", text):
        found += [part] if part in MARKS else [piece for word in _words(part) for piece in _pieces(word, vocabulary)]
    return [*found, "[SEP]"]


def _words(text: str) -> list[str]:
    kept = (" " if letter in "\t\n\r" else letter for letter in text if _is_kept(letter))
    apart = "".join(f" {letter} " if _is_chinese(letter) else letter for letter in kept)
    plain = (letter for letter in unicodedata.normalize("NFD", apart) if unicodedata.category(letter) != "Mn")
    lower = "".join(letter.lower() for letter in plain)  # letter by letter: a Greek word's last sigma is no other one
    return "".join(f" {letter} " if _is_punctuation(letter) else letter for letter in lower).split()


def _pieces(word: str, vocabulary: Container[str]) -> list[str]:
    found: list[str] = []
    start = 0
    while start < len(word) <= LONGEST:
        before = "##" if start else ""
        ends = (end for end in range(len(word), start, -1) if before + word[start:end] in vocabulary)
        end = next(ends, 0)
        if not end:
            break
        found.append(before + word[start:end])
        start = end
    return found if start == len(word) else ["[UNK]"]


def _is_kept(letter: str) -> bool:
    return letter in "\t\n\r" or (letter != "\ufffd" and unicodedata.category(letter) not in ("Cc", "Cf", "Co", "Cs"))


def _is_chinese(letter: str) -> bool:
    return any(first <= ord(letter) <= last for first, last in CHINESE)


def _is_punctuation(letter: str) -> bool:
    return letter in SIGNS or unicodedata.category(letter).startswith("P")
