"""What chapters fetch or read by compiled packages, in the browser: a pretrained network, reviews, safetensors.

The network is the pinned one with its weights rounded (`linattn_ref.models.bert.rounded`). Of the reviews there are
those that chapters read; in the places of the others stands nothing.
"""

import contextlib
import csv
import io
import json
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from linattn_ref import clone
from linattn_ref.data import fetch
from linattn_ref.models import bert
from linattn_ref.models.bert import rounded, word_pieces
from linattn_ref.op import Array

__all__ = ["NETWORK", "REVIEWS", "Pieces", "only", "open_content", "read_network", "safetensors_modules"]

WHY = "{} is not available in the browser: this runs where the package is installed"
NETWORK, REVIEWS = "all-MiniLM-L6-v2/encoder.npz", "reviews.csv"  # in the archives, beside the package


def open_content(package: fetch.Package, **options: Any) -> Path:
    """In the place of `fetch.open_content`.

    Raises
    ------
    FetchError
        It is not here.
    """
    kept = {fetch.MODEL.name: Path(NETWORK).parent, fetch.REVIEWS.name: Path(REVIEWS)}
    place = clone.ROOT / kept.get(package.name, package.filename)
    if not place.exists():
        raise fetch.FetchError(WHY.format(f"{package.name} ({package.megabytes} MB)"))
    return place


def read_network(folder: str | os.PathLike[str]) -> bert.Model:
    """In the place of `bert.load`."""
    model, pieces = rounded.unpack(Path(folder) / Path(NETWORK).name)
    tokenizer: Any = Pieces(pieces)
    return model._replace(tokenizer=tokenizer)


class Pieces:
    """A tokenizer in plain Python, with what `linattn_ref.data.text` asks of one."""

    truncation = padding = None

    def __init__(self, pieces: Iterable[str]) -> None:
        self.numbers = {piece: number for number, piece in enumerate(pieces)}

    def encode(self, text: str) -> SimpleNamespace:
        """The numbers of its pieces, between the two special ones."""
        return SimpleNamespace(ids=[self.numbers[piece] for piece in word_pieces.encode(text, self.numbers)])

    def num_special_tokens_to_add(self, is_pair: bool) -> int:
        """Of a single text."""
        return 3 if is_pair else 2

    def token_to_id(self, piece: str) -> int | None:
        """Its number, if it has one."""
        return self.numbers.get(piece)


def only(wanted: Callable[[str, int], bool], rows: Iterable[tuple[str, int, str]]) -> bytes:
    """The CSV that `splits.read_labelled` reads, of rows ``text, label, source``: texts that are not wanted are empty.

    ``wanted`` gets a source and a text's number in it.
    """
    file, numbers = io.StringIO(newline=""), Counter[str]()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("text", "label", "source"))
    for text, label, source in rows:
        writer.writerow((text if wanted(source, numbers[source]) else "", label, source))
        numbers[source] += 1
    return file.getvalue().encode()


# --- safetensors ------------------------------------------------------------------------------------------------------

TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U8": "|u1"}
TYPES |= {"U64": "<u8", "U32": "<u4", "U16": "<u2", "BOOL": "|b1"}
NAMES = {np.dtype(numpy): name for name, numpy in TYPES.items()}


def to_bytes(arrays: dict[str, Array], metadata: dict[str, str] | None = None) -> bytes:
    """As ``safetensors.numpy.save``: the length of a header, the header in JSON, and the arrays."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    start = 0
    for name, array in arrays.items():
        end = start + array.nbytes
        header[name] = {"dtype": NAMES[array.dtype], "shape": array.shape, "data_offsets": (start, end)}
        start = end
    told = json.dumps(header).encode()
    told += b" " * (-len(told) % 8)
    return b"".join([struct.pack("<Q", len(told)), told, *(array.tobytes() for array in arrays.values())])


class Opened(contextlib.AbstractContextManager[Any]):
    """As ``safetensors.safe_open``."""

    def __init__(self, path: str | os.PathLike[str], framework: str = "numpy") -> None:
        content = Path(path).read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        self.header: dict[str, Any] = json.loads(content[8 : 8 + length])
        self.told, self.content = self.header.pop("__metadata__", None), memoryview(content)[8 + length :]

    def __exit__(self, *error: object) -> None:
        pass

    def metadata(self) -> dict[str, str] | None:
        """What was said of it."""
        return self.told

    def keys(self) -> list[str]:
        """Names of arrays."""
        return list(self.header)

    def get_tensor(self, name: str) -> Array:
        """An array of its own."""
        found = self.header[name]
        start, end = found["data_offsets"]
        return np.frombuffer(self.content[start:end], TYPES[found["dtype"]]).reshape(found["shape"]).copy()


def safetensors_modules() -> dict[str, ModuleType]:
    """What the package uses of ``safetensors``, by module."""
    top, of_numpy = ModuleType("safetensors"), ModuleType("safetensors.numpy")
    vars(top).update(__path__=[], SafetensorError=ValueError, safe_open=Opened, numpy=of_numpy)
    vars(of_numpy).update(save=to_bytes)
    return {"safetensors": top, "safetensors.numpy": of_numpy}
