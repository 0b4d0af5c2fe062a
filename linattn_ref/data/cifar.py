"""CIFAR-10: 60,000 colour images of 32 x 32 pixels, from its binary files, for anyone who has them.

A record is a byte for the label, then 1024 of red, 1024 of green and 1024 of blue, each row by row. They are handed out
with the three colours of a pixel side by side, the order in which "Transformers are RNNs" reads an image.

References
----------
Krizhevsky (2009), "Learning multiple layers of features from tiny images".
"""

from pathlib import Path

import numpy as np

from linattn_ref.data.digits import Bytes, Images

__all__ = ["SIDE", "read_folder"]

SIDE = 32  # pixels
RECORD = 1 + 3 * SIDE * SIDE  # bytes
TRAINING = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST = ("test_batch.bin",)
LABELS = 10


def read_folder(folder: Path) -> Images:
    """The six files of the "binary version": 50,000 images to learn from, and 10,000 of the test, ``(32, 32, 3)`` each.

    Raises
    ------
    FileNotFoundError
        One is not there.
    ValueError
        One does not consist of such records.
    """
    return Images(*_read(Path(folder), TRAINING), *_read(Path(folder), TEST))


def _read(folder: Path, names: tuple[str, ...]) -> tuple[Bytes, Bytes]:
    """Images and labels of some files, one after the other."""
    records = np.concatenate([_records(folder / name) for name in names])  # (count, 3073)
    planes = records[:, 1:].reshape(-1, 3, SIDE, SIDE)
    return np.ascontiguousarray(np.moveaxis(planes, 1, -1)), records[:, 0].copy()


def _records(path: Path) -> Bytes:
    if not path.is_file():
        raise FileNotFoundError(f"data: {path.parent}: there is no {path.name}")
    content = np.fromfile(path, np.uint8)
    if content.size == 0 or content.size % RECORD:
        raise ValueError(f"data: {path}: expected records of {RECORD} bytes, got {content.size} bytes")
    records = content.reshape(-1, RECORD)
    if (highest := records[:, 0].max()) >= LABELS:
        raise ValueError(
            f"data: {path}: expected labels 0 to {LABELS - 1}, got {highest}: not CIFAR-10's binary version"
        )
    return records
